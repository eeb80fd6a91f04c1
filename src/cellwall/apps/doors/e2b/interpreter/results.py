"""Results: events of an execution as the interpreter's lines.

Pure. The invariant: a line is strict JSON in ASCII, because clients split text at other line ends
than `\\n`, decode each chunk by itself, and fail at a NaN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cellwall.model.outcome import Verdict
from cellwall.wire.answer import finite

if TYPE_CHECKING:
    from cellwall.model.execution import Event
    from cellwall.model.outcome import Outcome

CHART = "application/vnd.cellwall.chart+json"
TABLE = "application/vnd.cellwall.table+json"
_KEYS: Mapping[str, str] = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    TABLE: "data",
    CHART: "chart",
}
_PARSED = frozenset({"json", "data", "chart"})
_QUOTES = ("'", '"')
_ENDS: Mapping[Verdict, str] = {
    Verdict.WALL_TIME: "TimeLimitExceeded",
    Verdict.CPU_TIME: "CpuLimitExceeded",
    Verdict.MEMORY: "MemoryLimitExceeded",
    Verdict.OUTPUT: "OutputLimitExceeded",
    Verdict.PROCESSES: "ProcessLimitExceeded",
    Verdict.DISK: "DiskLimitExceeded",
    Verdict.SIGNALLED: "InterpreterKilled",
    Verdict.SYSCALL: "SystemCallRefused",
    Verdict.INTERRUPTED: "ExecutionInterrupted",
    Verdict.CANCELLED: "ExecutionInterrupted",
    Verdict.COMPILE_ERROR: "CompileError",
}
KEEPALIVE: Mapping[str, Any] = {"type": "keepalive"}
END: Mapping[str, Any] = {"type": "end_of_execution"}


def line(value: Mapping[str, Any]) -> bytes:
    """Return one line."""
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def began(count: int) -> dict[str, Any]:
    """Return the first line's object."""
    return {"type": "number_of_executions", "execution_count": count}


def error(name: str, value: str, traceback: str = "") -> dict[str, Any]:
    """Return the object of an error."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


class Reading:
    """Turns the events of one execution into lines, one after another."""

    def __init__(self) -> None:
        self._has_error = False

    def of(self, event: Event) -> dict[str, Any] | None:
        """Return the object for an event; None for one that clients have no word for."""
        if event.kind in ("stdout", "stderr"):
            now = datetime.now(UTC).isoformat()
            return {"type": event.kind, "text": event.text or "", "timestamp": now}
        if event.kind in ("display", "result"):
            return _result(event.data or {}, is_main=event.kind == "result")
        if event.error is not None:
            self._has_error = True
            return error(event.error.name, event.error.value, event.error.traceback)
        if event.outcome is not None and not self._has_error:
            return _end(event.outcome)
        if event.kind == "gap":
            self._has_error = True
            return error("OutputLost", "output came faster than it was read, and some is lost")
        return None


def _result(data: Mapping[str, Any], *, is_main: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "result", "is_main_result": is_main}
    extra: dict[str, Any] = {}
    for media, value in data.items():
        key = _KEYS.get(media)
        if key is None:
            extra[media] = value
        elif key in _PARSED:
            found[key] = _parsed(value)
        else:
            found[key] = _unquoted(value) if key == "text" else value
    if extra:
        found["extra"] = extra
    return {name: each for name, each in found.items() if each is not None}


def _parsed(value: Any) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(value, str):
        return value
    try:
        return finite({"value": json.loads(value)})["value"]
    except (ValueError, RecursionError):
        return None


def _unquoted(value: Any) -> Any:  # noqa: ANN401 - text, or what stands in its place
    if isinstance(value, str) and len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]:
        return value[1:-1]
    return value


def _end(outcome: Outcome) -> dict[str, Any] | None:
    """Return the error for an end by a limit, which no exception of the code tells of."""
    name = _ENDS.get(outcome.verdict)
    if name is None and outcome.verdict is not Verdict.NONZERO_EXIT:
        return None
    value = "; ".join(outcome.notes) or f"the code ended: {outcome.verdict.value}"
    return error(name or "ExitStatus", value if name else f"exit status {outcome.exit_code}")
