"""Bash: scripts only, each in a process of its own."""

from cellwall.languages.entries.language import Language, Sample

LANGUAGE = Language(
    name="bash",
    aliases=("sh", "shell"),
    extensions=(".sh", ".bash"),
    file_name="main.sh",
    run=("bash", "{file}"),
    context="bash",
    version=("bash", "--version"),
    install="apt-get install bash",
    call=("bash", "{caller}", "{file}"),
    caller="call.sh",
    error_status=(1, 2, 126, 127),
    error=r"^\S*main\.sh: line (?P<line>\d{1,9}): (?P<name>[^:\n]{1,80}): (?P<value>.*)$",
    hello="echo hello\n",
    failing=Sample("set -e\nmissing-command\n", "missing-command", 2),
)
