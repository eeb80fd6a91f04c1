"""Answer: an execution, its events and errors as plain JSON objects.

Pure: values in, dictionaries out. Called by the interfaces (command line, server, MCP), so that all
of them give the same answer in the same words. It is neither a transport nor a schema for requests.
Invariant: a published key keeps its name, its type and its place; output of a sandbox is copied,
never interpreted.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import mimetypes
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CellwallError
from cellwall.model.limits import Limits
from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cellwall.model.execution import Compilation, Event, Execution, ExecutionError
    from cellwall.model.outcome import Outcome

_LIMITS = tuple(field.name for field in fields(Limits))
_TIMEOUTS = frozenset({Verdict.WALL_TIME, Verdict.CPU_TIME})
_strict = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def status_of(verdict: Verdict) -> str:
    """Return the coarse status that older clients read: `success`, `timeout` or `error`."""
    if verdict is Verdict.OK:
        return "success"
    return "timeout" if verdict in _TIMEOUTS else "error"


def answer(execution: Execution) -> dict[str, Any]:
    """Return the answer of `POST /execute`, which is also the output of `cellwall run --json`."""
    outcome = execution.outcome
    ended = outcome.as_json()
    return {
        "execution_id": execution.id,
        "sandbox_id": execution.sandbox_id,
        "template": execution.template,
        "language": execution.language,
        "status": status_of(outcome.verdict),
        "verdict": ended["verdict"],
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "result": execution.result,
        "results": [dict(bundle) for bundle in execution.results],
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "exit_status": outcome.status,
        "error": _sentence(execution.error, outcome),
        "exception": _exception(execution.error),
        "oom_killed": outcome.verdict is Verdict.MEMORY,
        "time_ms": round(outcome.usage.wall_s * 1000, 3),
        "execution_time": round(outcome.usage.wall_s, 6),
        "artifacts": [_artifact(name, data) for name, data in execution.files.items()],
        "truncated": ended["truncated"],
        "usage": ended["usage"],
        "isolation": ended["isolation"],
        "limits": {name: getattr(execution.limits, name) for name in _LIMITS},
        "notes": ended["notes"],
        "trust": execution.trust,
        "compile": _compilation(execution.compilation),
    }


def _compilation(stage: Compilation | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    ended = None if stage.outcome is None else stage.outcome.as_json()
    return {
        "version": stage.version,
        "cached": stage.is_cached,
        "stdout": stage.stdout,
        "stderr": stage.stderr,
        "outcome": ended,
        "limits": {name: getattr(stage.limits, name) for name in _LIMITS},
    }


def _sentence(error: ExecutionError | None, outcome: Outcome) -> str | None:
    """Return the traceback, or the reason for any other end than a good one."""
    if error is not None:
        return error.traceback or f"{error.name}: {error.value}"
    if outcome.verdict is Verdict.OK:
        return None
    return "; ".join(outcome.notes) or outcome.verdict.value


def _exception(error: ExecutionError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "name": error.name,
        "value": error.value,
        "traceback": error.traceback,
        "line": error.line,
    }


def _artifact(name: str, data: bytes) -> dict[str, Any]:
    return {
        "name": name,
        # From the name alone: the content was made by unreviewed code.
        "mime_type": mimetypes.guess_type(name)[0] or "application/octet-stream",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "content_b64": base64.b64encode(data).decode("ascii"),
    }


def event_line(event: Event) -> dict[str, Any]:
    """Return one event as the object of one NDJSON line.

    The key that a simple client reads stands beside `seq` and `type`: `text`, `image`, `error`.
    """
    kind, body = _EVENTS[event.kind](event)
    return {"seq": event.seq, "type": kind, **body}


def _text_event(event: Event) -> tuple[str, dict[str, Any]]:
    return event.kind, {"text": event.text or ""}


def _data_event(event: Event) -> tuple[str, dict[str, Any]]:
    data = dict(event.data or {})
    body: dict[str, Any] = {"data": data}
    if "text/plain" in data:
        body["text"] = data["text/plain"]
    if event.kind == "display" and "image/png" in data:
        return "image", {"image": data["image/png"], **body}
    return event.kind, body


def _error_event(event: Event) -> tuple[str, dict[str, Any]]:
    error = event.error
    if error is None:
        return "error", {"error": "", "name": "", "value": ""}
    return "error", {"error": error.traceback, "name": error.name, "value": error.value}


def _value_event(event: Event) -> tuple[str, dict[str, Any]]:
    return "value", {"value": event.value}


def _tool_call_event(event: Event) -> tuple[str, dict[str, Any]]:
    return "tool_call", dict(event.data or {})


def _gap_event(event: Event) -> tuple[str, dict[str, Any]]:
    return "gap", dict(event.value)


def _end_event(event: Event) -> tuple[str, dict[str, Any]]:
    if event.outcome is None:
        raise ValueError(f"event {event.seq}: kind `end` without an outcome")
    return "end", {"verdict": event.outcome.verdict.value, "outcome": event.outcome.as_json()}


_EVENTS: Mapping[str, Callable[[Event], tuple[str, dict[str, Any]]]] = {
    "stdout": _text_event,
    "stderr": _text_event,
    "display": _data_event,
    "result": _data_event,
    "error": _error_event,
    "value": _value_event,
    "tool_call": _tool_call_event,
    "gap": _gap_event,
    "end": _end_event,
}


def error_envelope(error: BaseException, request_id: str) -> dict[str, Any]:
    """Return `{"error": {code, message, remedy, request_id}}` for a failure.

    The text of an exception that cellwall did not raise on purpose is not sent: it may hold paths,
    keys or other users' data.
    """
    if isinstance(error, CellwallError):
        code, message, remedy = error.code, error.message, error.remedy
    else:
        code = "internal"
        message = "an unexpected failure of cellwall, not of the program"
        remedy = "quote the request id to the operator; the log has the details"
    return {"error": {"code": code, "message": message, "remedy": remedy, "request_id": request_id}}


def one_line(value: Mapping[str, Any] | list[Any]) -> str:
    """Encode `value` as one line of strict JSON.

    A program's result may hold NaN or infinities, which JSON does not have; they become null.
    """
    try:
        return _strict(value)
    except ValueError:
        return _strict(_finite(value))


def finite(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value` with null for every number that JSON does not have."""
    try:
        _strict(value)  # the encoder checks ten times as fast as `_finite`
    except ValueError:
        return {key: _finite(item) for key, item in value.items()}
    return value


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
