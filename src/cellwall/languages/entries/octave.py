"""Octave's command line."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="octave",
    aliases=("matlab",),
    extensions=(".m",),
    file_name="main.m",
    run=("octave-cli", "--quiet", "--norc", "--no-history", "{file}"),
    context=None,
    version=("octave-cli", "--version"),
    install="apt-get install octave",
    error=r"^(?P<name>error): (?P<value>.*)$",
    line=r"^error: called from\n(?:    [^\n]*\n)*?    \S+ at line (?P<line>\d{1,9})",
    hello='printf("hello\\n");\n',
    failing=Sample('1;\nfunction f()\n  error("boom");\nend\nf();\n', "error", 3),
)
