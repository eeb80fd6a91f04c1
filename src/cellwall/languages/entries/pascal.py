"""Pascal by Free Pascal."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="pascal",
    aliases=("fpc", "delphi"),
    extensions=(".pas", ".pp"),
    file_name="main.pas",
    compile=("fpc", "-v0we", "-l-", "-gl", "-FU/tmp", "{options}", "-o{build}/program", "{file}"),
    options=(r"-O[1-4]", r"-C[ort]{1,3}", r"-M(fpc|objfpc|delphi|tp)", r"-d[A-Za-z_]\w{0,80}"),
    run=("{build}/program",),
    context=None,
    version=("fpc", "-iV"),
    install="apt-get install fp-compiler",
    error_status=(),
    error=r"^(?P<name>Runtime error \d+|An unhandled exception occurred) at [^\n]*\n"
    r"(?P<value>[^\n]*)",
    line=r"line (?P<line>\d{1,9}) of {file}",
    hello="begin\n  writeln('hello');\nend.\n",
    failing=Sample(
        "var\n  a: integer;\nbegin\n  a := 0;\n  writeln(1 div a);\nend.\n", "Runtime error 200", 5
    ),
)
