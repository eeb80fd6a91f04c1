"""Lua 5.4."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="lua",
    aliases=("lua5.4",),
    extensions=(".lua",),
    file_name="main.lua",
    run=("lua5.4", "{file}"),
    context=None,
    version=("lua5.4", "-v"),
    install="apt-get install lua5.4",
    call=("lua5.4", "{caller}", "{file}"),
    caller="call.lua",
    error=r"^lua5\.4: (?:\S*main\.lua:(?P<line>\d{1,9}): )?(?P<value>.*)$",
    hello='print("hello")\n',
    failing=Sample('local function f()\n  error("boom")\nend\nf()\n', "Error", 2),
)
