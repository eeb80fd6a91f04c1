"""AWK by gawk: the program reads stdin and the files it is given as arguments."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="awk",
    aliases=("gawk",),
    extensions=(".awk",),
    file_name="main.awk",
    run=("gawk", "-f", "{file}", "--"),
    context=None,
    version=("gawk", "--version"),
    install="apt-get install gawk",
    error_status=(1, 2),
    error=r"^gawk: \S*main\.awk:(?P<line>\d{1,9}): (?:\([^)\n]*\) )?"
    r"(?P<name>fatal|error): (?P<value>.*)$",
    hello='BEGIN {\n  print "hello"\n}\n',
    failing=Sample("BEGIN {\n  print 1 / 0\n}\n", "error", 2),
)
