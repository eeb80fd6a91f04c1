"""What untrusted text looks like on our own stdout and stderr.

Not a formatter. Called for everything that a sandbox produced, before it is written. Invariant:
on a terminal no byte of a sandbox's output is ever obeyed, only shown; in a pipe it passes as
it is, because there the next program decides.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from queue import SimpleQueue
from threading import Event as Signal
from threading import Thread
from typing import TYPE_CHECKING, TextIO

from cellwall.apps.cli.console.own_streams import failure
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.model.execution import Event

_ALLOWED = "\n\t\r"  # \r rewrites the program's own line at worst; progress bars need it
_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def _table() -> dict[int, str]:
    shown = {code: f"^{chr(code + 64)}" for code in range(32) if chr(code) not in _ALLOWED}
    shown[0x7F] = "^?"
    shown.update({code: f"\\x{code:02x}" for code in range(0x80, 0xA0)})
    # Direction overrides make text read otherwise than it is ("trojan source").
    shown.update({ord(mark): f"\\u{ord(mark):04x}" for mark in _BIDI})
    return shown


_VISIBLE = _table()


def visible(text: str) -> str:
    """Return `text` with control and direction characters made visible; idempotent."""
    return text.translate(_VISIBLE)


class Output:
    """Our stdout or stderr as the place where a sandbox's stream goes."""

    def __init__(self, stream: TextIO) -> None:
        """Decide once whether a terminal listens."""
        self._stream = stream
        self._is_terminal = stream.isatty()

    def write(self, text: str) -> None:
        """Write text a sandbox produced, at once."""
        if self._is_terminal:
            text = visible(text)
        binary = getattr(self._stream, "buffer", None)
        if binary is None:
            self._stream.write(text)
        else:
            # Not through the text layer: its encoding may be ASCII and its newlines translated.
            binary.write(text.encode("utf-8", "replace"))
        self._stream.flush()


class Streams:
    """Both streams of a program, fed by events, written by a thread of their own.

    Who feeds is the event loop that also holds the clocks: a reader that stops reading ours
    (`| less`) must not stop those. The queue needs no bound; the limit on output is one.
    """

    def __init__(self, on_broken: Callable[[], object] = lambda: None) -> None:
        """`on_broken` is called once, from the thread, when there is no writing any more."""
        self._outputs = {"stdout": Output(sys.stdout), "stderr": Output(sys.stderr)}
        self._queue: SimpleQueue[tuple[str, str] | Signal | None] = SimpleQueue()
        self._on_broken = on_broken
        self._failure: UsageError | BrokenPipeError | None = None
        self._thread = Thread(target=self._write, name="cellwall-output", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the writing: `BrokenPipeError`, or `UsageError` as for a full disk."""
        if self._failure is not None:
            raise self._failure

    def feed(self, event: Event) -> None:
        """Write the text of a `stdout` or `stderr` event; others are not ours."""
        if event.text and event.kind in self._outputs:
            self._queue.put((event.kind, event.text))

    def say(self, kind: str, text: str) -> None:
        """Write `text`, which a sandbox produced, in order with what was fed."""
        self._queue.put((kind, text))

    def drain(self) -> None:
        """Return when everything so far is written, or cannot be."""
        passed = Signal()
        self._queue.put(passed)
        passed.wait()

    def close(self) -> None:
        """Drain, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Signal):
                item.set()
                continue
            if self._failure is not None:
                continue
            kind, text = item
            try:
                self._outputs[kind].write(text)
            except OSError as error:
                self._failure = failure(1 if kind == "stdout" else 2, error)
            except UsageError as error:
                self._failure = error
            if self._failure is not None:
                self._on_broken()


def complain(text: str) -> None:
    """Write one line of ours to stderr; it may quote a sandbox, so it is made visible.

    Where stderr cannot be written, the exit status has to do.
    """
    with suppress(OSError):
        sys.stderr.write(visible(f"cellwall: {text}\n"))
        sys.stderr.flush()
