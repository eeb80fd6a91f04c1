"""Tcl."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="tcl",
    aliases=("tclsh",),
    extensions=(".tcl",),
    file_name="main.tcl",
    run=("tclsh", "{file}"),
    context=None,
    version=("tclsh",),
    install="apt-get install tcl",
    error=r"^(?P<value>[^\n]+)\n    (?:while executing|invoked from within|\(procedure)",
    line=r'\(file "[^"\n]*{file}" line (?P<line>\d{1,9})\)',
    hello='puts "hello"\n',
    failing=Sample('proc f {} {\n  error "boom"\n}\nf\n', "Error", 4),
)
