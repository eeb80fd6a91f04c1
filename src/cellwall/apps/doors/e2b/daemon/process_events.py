"""Events of a process in the protocol's words: its start, its output, its end."""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError
from cellwall.model.errors import SandboxUnavailable
from cellwall.model.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.model.execution import Event

_CHUNK = 32 * 1024
"""Maximum bytes of one data event."""
ALIVE: Value = {"event": {"keepalive": {}}}
_GONE = frozenset({Verdict.CANCELLED, Verdict.SANDBOX_ERROR})
_NAMES = {
    signals.SIGKILL: "killed",
    signals.SIGTERM: "terminated",
    signals.SIGINT: "interrupt",
    signals.SIGHUP: "hangup",
    signals.SIGSEGV: "segmentation fault",
    signals.SIGABRT: "aborted",
}


def started(pid: int) -> Value:
    """Return the first event."""
    return {"event": {"start": {"pid": pid}}}


def data(stream: str, raw: bytes) -> Iterator[Value]:
    """Yield output; `stream` is `stdout`, `stderr` or `pty`."""
    for at in range(0, len(raw), _CHUNK):
        yield {"event": {"data": {stream: raw[at : at + _CHUNK]}}}


def of(event: Event, *, is_late: bool = False) -> Iterator[Value]:
    """Yield the protocol's events for one of a command's.

    A late reader does not miss what was lost before it came. Raises ConnectError, and
    SandboxUnavailable if it ended with its sandbox.
    """
    if event.kind in ("stdout", "stderr"):
        yield from data(event.kind, (event.text or "").encode("utf-8", "surrogateescape"))
    elif event.kind == "gap" and not is_late:
        raise ConnectError("data_loss", "output came faster than it was read, and some is lost")
    elif event.outcome is not None:
        yield ended(event.outcome)


def ended(outcome: Outcome) -> Value:
    """Return the last event. Raises ConnectError for the time limit, and SandboxUnavailable."""
    if outcome.verdict in _GONE:
        raise SandboxUnavailable("process: it ended with its sandbox, or with the server")
    if outcome.verdict is Verdict.WALL_TIME:
        raise ConnectError("deadline_exceeded", "the process was killed: its time limit is over")
    end: Value = {"exit_code": -1, "exited": outcome.exit_code is not None}
    if outcome.exit_code is not None:
        end["exit_code"] = outcome.exit_code
        end["status"] = f"exit status {outcome.exit_code}"
    else:
        number = outcome.signal or signals.SIGKILL
        end["status"] = f"signal: {_NAMES.get(signals.Signals(number), f'signal {number}')}"
    if not outcome.is_its_own:
        # a limit ended it: the client is told which, since the status alone does not say it
        notes = "; ".join(outcome.notes) or f"limit: {outcome.verdict.value}"
        end["error"] = f"{end['status']} ({notes})"
    elif end["exit_code"] != 0:
        end["error"] = end["status"]
    return {"event": {"end": end}}
