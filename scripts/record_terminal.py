"""Draws docs/terminal.svg: real commands, really run, as a picture of their terminal.

Run it in a clone after `make run`: `.venv/bin/python scripts/record_terminal.py`. Not a test of
what is shown; the README's examples have theirs.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 92
COMMANDS = (
    """cellwall run -c 'import sys; print("hello from", sys.platform)'""",
    "cellwall run --timeout 0.5 examples/hostile/endless_loop.py; echo status $?",
    "cellwall run --memory 64 -c 'x = bytearray(10**9)'; echo status $?",
    """cellwall run -c 'import socket; socket.create_connection(("192.0.2.1", 80))' |& tail -1""",
    """cellwall run -c 'open("/etc/passwd", "w")' |& tail -1""",
    """cellwall run --json -c 'result = 6 * 7' | jq -c '[.result, .verdict, .isolation.level]'""",
)
_FONT = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
"""Rich's fonts lie on another server; the reader's own monospace font is as good."""


def _output(command: str) -> str:
    """Return what a command writes to a terminal of `COLUMNS` columns."""
    ours, theirs = pty.openpty()
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        ["/bin/bash", "-c", command], cwd=ROOT, env=environment, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # its last writer has gone
            break
        if not part:
            break
        said += part
    process.wait()
    os.close(ours)
    return said.decode("utf-8", "replace").replace("\r\n", "\n")


def main(target: str = "docs/terminal.svg") -> None:
    """Run the commands and write the picture."""
    console = Console(record=True, width=COLUMNS, force_terminal=True, color_system="truecolor")
    for command in COMMANDS:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(_output(command).rstrip("\n")))
    picture = _FONT.sub("", CONSOLE_SVG_FORMAT)
    console.save_svg(str(ROOT / target), title="cellwall", code_format=picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
