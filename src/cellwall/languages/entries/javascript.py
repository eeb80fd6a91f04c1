"""JavaScript by Node.js: sessions, and programs in a node that waits for them."""

from cellwall.languages.entries.language import Language, Sample

ERROR = r"^(?:Uncaught )?(?P<name>[A-Z][A-Za-z0-9_]{0,60}): (?P<value>.*)$"

LANGUAGE = Language(
    name="javascript",
    aliases=("js", "node", "nodejs"),
    extensions=(".js", ".mjs", ".cjs"),
    file_name="main.js",
    run=("node", "{file}"),
    context="javascript",
    version=("node", "--version"),
    install="apt-get install nodejs",
    call=("node", "{caller}", "{file}"),
    caller="call.js",
    error=ERROR,
    line=r"^(?:\S{0,200}|[ \t]{1,8}at [^\n]{0,200}){file}:(?P<line>\d{1,9})(?::\d{1,9}\)?)?$",
    hello='console.log("hello");\n',
    failing=Sample('function f() {\n  throw new TypeError("boom");\n}\nf();\n', "TypeError", 2),
)
