"""What `cellwall run` prints of a program beside its own output: tables of SQL, word of images.

Not what a session shows (`shell`), where every value is shown. A program prints what it wants
seen, except where its language has no other way to print than to return rows, and except for
images, which no stream carries: those are for `--json`, and one line says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.apps.cli.console.terminal import Streams
    from cellwall.model.execution import Event

_PRINTS_ROWS = frozenset({"sql", "duckdb"})


class Shown:
    """The events of one program, as they come."""

    def __init__(self, language: str, streams: Streams) -> None:
        self._has_rows = language in _PRINTS_ROWS
        self._streams = streams
        self._images = 0

    def feed(self, event: Event) -> None:
        """Print what of it is to be seen."""
        self._streams.feed(event)
        data = event.data if event.kind in ("display", "result") else None
        if not data:
            return
        if any(kind.startswith("image/") for kind in data):
            self._images += 1
            word = f"cellwall: image {self._images} is not shown here; --json has it\n"
            self._streams.say("stderr", word)
        elif self._has_rows and "text/plain" in data:
            self._streams.say("stdout", f"{data['text/plain']}\n")
