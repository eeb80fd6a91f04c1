"""JavaScript by Node.js: programs only, each in a process of its own."""

from cellwall.languages.language import Language

LANGUAGE = Language(
    name="javascript",
    aliases=("js", "node", "nodejs"),
    extensions=(".js", ".mjs", ".cjs"),
    file_name="main.js",
    run=("node", "{file}"),
    context=None,
    version=("node", "--version"),
    install="apt-get install nodejs",
)
