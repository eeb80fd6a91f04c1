"""Fortran by gfortran."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="fortran",
    aliases=("f90", "gfortran"),
    extensions=(".f90", ".f95", ".f03", ".f08", ".f"),
    file_name="main.f90",
    compile=("gfortran", "-O2", "-J", "/tmp", "{options}", "-o", "{build}/program", "{sources}"),
    options=(
        r"-O[0123sg]?",
        r"-g[0-3]?",
        r"-W(?![alp],)[a-z0-9=+-]{1,80}",
        r"-std=(f95|f2003|f2008|f2018|gnu|legacy)",
        r"-fcheck=(all|bounds|none)",
        "-fopenmp",
    ),
    run=("{build}/program",),
    context=None,
    version=("gfortran", "--version"),
    install="apt-get install gfortran libc6-dev",
    error_status=(2,),
    error=r"^(?:At line (?P<line>\d{1,9}) of file [^\n]*\n)?"
    r"(?P<name>ERROR STOP|Fortran runtime error:) ?(?P<value>.*)$",
    hello='program main\n  print "(a)", "hello"\nend program main\n',
    failing=Sample(
        "program main\n  integer :: i\n  read (*, *) i\n  print *, i\nend program main\n",
        "Fortran runtime error:",
        3,
    ),
)
