"""SWI-Prolog: the file is loaded, its `:- initialization(main).` runs, then it halts."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="prolog",
    aliases=("swipl", "swi-prolog"),
    extensions=(".pro", ".prolog", ".plt"),
    file_name="main.pro",
    run=("swipl", "-q", "--on-error=status", "-t", "halt", "{file}", "--"),
    context=None,
    version=("swipl", "--version"),
    install="apt-get install swi-prolog-nox",
    error_status=(1, 2),
    error=r"^(?:ERROR|Warning): (?:\S*main\.pro:(?P<line>\d{1,9}):(?:\d{1,9}:)? )?"
    r"(?:Initialization goal raised exception:\nERROR: |user:main )?(?P<value>[^\n]+)$",
    hello=":- initialization(main).\nmain :- writeln(hello).\n",
    failing=Sample(":- initialization(main).\nmain :-\n    throw(boom).\n", "Error", 1),
)
