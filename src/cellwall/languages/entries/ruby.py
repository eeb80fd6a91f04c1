"""Ruby."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="ruby",
    aliases=("rb",),
    extensions=(".rb",),
    file_name="main.rb",
    run=("ruby", "{file}"),
    context="ruby",
    version=("ruby", "--version"),
    install="apt-get install ruby",
    call=("ruby", "{caller}", "{file}"),
    caller="call.rb",
    error=r"^\S*main\.rb:(?P<line>\d{1,9}):(?:in [^:\n]*:)? (?P<value>.*) "
    r"\((?P<name>[A-Z][\w:]*)\)$",
    hello='puts "hello"\n',
    failing=Sample('def f\n  raise ArgumentError, "boom"\nend\nf\n', "ArgumentError", 2),
)
