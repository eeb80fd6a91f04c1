"""Perl. What `die` says has no type of its own."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="perl",
    aliases=("perl5",),
    extensions=(".pl", ".pm"),
    file_name="main.pl",
    run=("perl", "{file}"),
    context=None,
    version=("perl", "--version"),
    install="apt-get install perl",
    needs=("json_pp",),  # as sign of the standard library: a stock Debian has a part of it
    call=("perl", "{caller}", "{file}"),
    caller="call.pl",
    error_status=(),
    error=r"^(?P<value>[^\n]*) at \S*main\.pl line (?P<line>\d{1,9})[.,]",
    hello='print "hello\\n";\n',
    failing=Sample('sub f {\n    die "boom";\n}\nf();\n', "Error", 2),
)
