"""Bash: scripts only, each in a process of its own."""

from cellwall.languages.language import Language

LANGUAGE = Language(
    name="bash",
    aliases=("sh", "shell"),
    extensions=(".sh", ".bash"),
    file_name="main.sh",
    run=("bash", "{file}"),
    context=None,
    version=("bash", "--version"),
    install="apt-get install bash",
)
