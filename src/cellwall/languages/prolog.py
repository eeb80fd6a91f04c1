"""SWI-Prolog: the file is loaded, its `:- initialization(main).` runs, then it halts."""

from cellwall.languages.language import Language, Sample

LANGUAGE = Language(
    name="prolog",
    aliases=("swipl", "swi-prolog"),
    extensions=(".pro", ".prolog", ".plt"),
    file_name="main.pro",
    run=("swipl", "-q", "-t", "halt", "{file}", "--"),
    context=None,
    version=("swipl", "--version"),
    install="apt-get install swi-prolog-nox",
    error=r"^Warning:\s+Goal \([^)\n]*\) raised exception:\n(?:Warning:\s+)?(?P<value>[^\n]*)",
    line=r"{file}:(?P<line>\d{1,9})",
    hello=":- initialization(main).\nmain :- writeln(hello).\n",
    failing=Sample(":- initialization(main).\nmain :-\n    throw(boom).\n", "Error"),
)
