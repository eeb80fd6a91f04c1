"""One execution in a context: the counters and findings that init keeps for it.

`contexts.py` creates and ends these. An execution holds no process and decides no verdict.

Only `exit` and the counters here are evidence. What the context reports about itself (`raised`,
display, error, value) is passed on within bounds, and the host knows that caller code may have sent
it.
"""

from __future__ import annotations

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.frames import Header
from cellwall.guest.channel.pipes import Feed, Meter
from cellwall.guest.channel.progress import IDLE, REPORTED, Progress
from cellwall.guest.channel.strict_json import dump, is_nested
from cellwall.guest.init.tool_calls import Calls
from cellwall.guest.process.processes import Exit, LivingUsage

_DISPLAY_KINDS = ("display", "result")
_MOST_DISPLAYS = 10_000
_MOST_METADATA_LEVELS = 64
_MOST_METADATA_BYTES = 2048
"""Same bound as in a context: the host parses metadata on a loop that all sandboxes share."""
_MOST_CLAIMED_BYTES = 2**40
_MOST_STATUS = 256


class Execution:
    """Budgets and findings of one `execute` request."""

    def __init__(
        self, channel: Channel, number: int, output_bytes: int, display_bytes: int
    ) -> None:
        """`number` is the id of the request; `output_bytes` is the limit of each stream."""
        self._channel = channel
        self.id = number
        self.progress = Progress(IDLE)
        self.stdout = Meter(output_bytes)
        self.stderr = Meter(output_bytes)
        self._display = Meter(display_bytes)
        self._displays_left = _MOST_DISPLAYS
        self._said_once: set[str] = set()
        self.usage: LivingUsage | None = None
        """Set for a cell, whose context lives on; a program's usage comes with its exit."""
        self.feed: Feed | None = None
        self.calls: Calls | None = None
        """Calls to tools of the host, if the execution may make any."""
        self.since: int | None = None
        """Time at which a cell began, in ticks; see `families`."""
        self.is_program = False
        self.is_over = False
        self.is_interrupted = False
        """Whether a SIGINT was sent whose arrival the context has not yet confirmed."""
        self.raised = False
        self.status: int | None = None
        """Exit status that a cell reports, where its language has such a thing."""

    def show(self, header: Header, body: bytes) -> None:
        """Pass a display on, whole or not at all: half a picture is useless."""
        room = self._display.limit - self._display.passed
        if len(body) > room or not self._displays_left:
            self._display.cut += len(body)
            return
        self._display.admit(body)
        self._displays_left -= 1
        kind = header.get("kind")
        event: Header = {
            "ev": "display",
            "id": self.id,
            "kind": kind if kind in _DISPLAY_KINDS else "display",
            "metadata": _bounded(header.get("metadata")),
        }
        self._channel.send(event, body)

    def tell_once(self, event: str, header: Header, body: bytes) -> None:
        """Pass on the error or the value; an execution has one of each at most."""
        if event in self._said_once:
            return
        self._said_once.add(event)
        note = header.get("unserialisable")
        extra = {"unserialisable": note[:200]} if isinstance(note, str) else {}
        self._channel.send({"ev": event, "id": self.id, **extra}, body)

    def conclude(self, header: Header) -> None:
        """Note what the context reports at the end of its run."""
        self.is_over = True
        self.raised = header.get("raised") is True
        status = header.get("status")
        self.status = status if type(status) is int and 0 < status < _MOST_STATUS else None
        dropped = header.get("display_cut")
        if isinstance(dropped, int) and 0 < dropped < _MOST_CLAIMED_BYTES:
            self._display.cut += dropped

    def withdraw(self) -> None:
        """Release its input and its calls. Call this alone for an execution that never began."""
        if self.calls is not None:
            self.calls.close()
        if self.feed is not None:
            self.feed.close()

    def finish(self, end: Exit | None, remains: int = 0) -> None:
        """Send `done`; without `end` the context lives on.

        `remains` is how many processes of its family could not be ended.
        """
        self.progress.advance(REPORTED)
        unread = 0 if self.feed is None else self.feed.dropped
        self.withdraw()
        self._channel.send(
            {
                "ev": "done",
                "id": self.id,
                "exit_code": end.exit_code if end else self.status,
                "signal": end.signal if end else None,
                "alive": end is None,
                "raised": self.raised,
                "cut": {
                    "stdout": self.stdout.cut,
                    "stderr": self.stderr.cut,
                    "display": self._display.cut,
                    "stdin": unread,
                },
                "rusage": end.rusage if end else self._living_usage(),
                "remains": remains,
            }
        )

    def _living_usage(self) -> dict[str, int]:
        return {} if self.usage is None else self.usage.since_start()


def _bounded(metadata: object) -> Header:
    """Return metadata of a display to pass on; empty if it is too large or not JSON."""
    if not metadata or not isinstance(metadata, dict) or is_nested(metadata, _MOST_METADATA_LEVELS):
        return {}
    try:
        size = len(dump(metadata))
    except (ValueError, RecursionError):
        return {}  # such as 1e999
    return metadata if size <= _MOST_METADATA_BYTES else {}
