"""Reading: turn JSON answers, events, commands, files and errors into the library's values.

The inverse of `answer`, for the receiver. It is not a check of hostile data: the JSON comes from a
server that its user chose; an unexpected shape is a `ValueError`, and unknown keys are ignored, so
that an older client can read a newer server.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from cellwall.model.errors import (
    AccessDenied,
    CapacityError,
    CellwallError,
    Conflict,
    FileError,
    HostUnsupported,
    ImageComing,
    Interrupted,
    NodeLost,
    NodeUnreachable,
    NotFound,
    PortError,
    QuotaExceeded,
    SandboxBroken,
    SandboxUnavailable,
    UsageError,
)
from cellwall.model.execution import CommandResult, Compilation, Event, Execution, ExecutionError
from cellwall.model.files import CHANGE_KINDS, Change
from cellwall.model.limits import Limits
from cellwall.model.outcome import (
    Isolation,
    IsolationLevel,
    NetworkUsage,
    Outcome,
    Truncated,
    Usage,
    Verdict,
)
from cellwall.model.snapshot import Snapshot

Json = Mapping[str, Any]
_LIMITS = frozenset(field.name for field in fields(Limits))
_NOWHERE: Json = {"runtime": "", "level": "process", "posture": "", "limits": {}}
"""Isolation of an execution that was cancelled before anything ran."""


def execution_of(value: Json) -> Execution:
    """Return the execution that an answer of `/execute` or `/executions/{id}` describes.

    Raises the server's failure if it ended with one.
    """
    return Execution(**execution_fields(value))


def execution_fields(value: Json) -> dict[str, Any]:
    """Return the arguments of `execution_of`'s execution. Raises as that does."""
    if value.get("failure") is not None:
        raise error_of(value["failure"])
    exception = value.get("exception")
    return {
        "id": value["execution_id"],
        "language": value["language"],
        "stdout": value["stdout"],
        "stderr": value["stderr"],
        "outcome": outcome_of(value),
        "limits": limits_of(value.get("limits") or {}),
        "result": value.get("result"),
        "results": tuple(value.get("results", ())),
        "error": None if exception is None else _error(exception),
        "template": value["template"],
        "sandbox_id": value.get("sandbox_id") or "",
        "started_at": seconds_of(value.get("started_at")),
        "files": {
            each["name"]: base64.b64decode(each["content_b64"]) for each in value["artifacts"]
        },
        "trust": value.get("trust"),
        "compilation": _compilation(value.get("compile")),
    }


def _compilation(value: Json | None) -> Compilation | None:
    if value is None:
        return None
    outcome = value.get("outcome")
    return Compilation(
        version=value["version"],
        is_cached=value["cached"],
        stdout=value["stdout"],
        stderr=value["stderr"],
        outcome=None if outcome is None else outcome_of(outcome),
        limits=limits_of(value["limits"]),
    )


def outcome_of(value: Json) -> Outcome:
    """Return the outcome of an `outcome` object, or of an answer, which has the same keys."""
    usage, cut = value.get("usage") or {}, value.get("truncated") or {}
    return Outcome(
        verdict=Verdict(value["verdict"]),
        isolation=isolation_of(value.get("isolation") or _NOWHERE),
        exit_code=value.get("exit_code"),
        signal=value.get("signal"),
        usage=_usage_of(usage),
        truncated=Truncated(
            **{each.name: cut[each.name] for each in fields(Truncated) if each.name in cut}
        ),
        notes=tuple(value.get("notes", ())),
    )


def _usage_of(value: Json) -> Usage:
    known = {each.name: value[each.name] for each in fields(Usage) if each.name in value}
    if known.get("network") is not None:
        known["network"] = network_usage_of(known["network"])
    return Usage(**known)


def network_usage_of(value: Json) -> NetworkUsage:
    """Return what passed the egress proxy."""
    names = {each.name for each in fields(NetworkUsage)}
    return NetworkUsage(**{name: value[name] for name in names if name in value})


def isolation_of(value: Json) -> Isolation:
    """Return the isolation that was in force."""
    level = IsolationLevel[str(value["level"]).upper()]
    limits, ids = dict(value["limits"]), str(value.get("ids", "shared"))
    profile = value.get("profile", "default")
    return Isolation(value["runtime"], level, value["posture"], limits, ids, profile)


def limits_of(value: Json) -> Limits:
    """Return limits."""
    return Limits(**{k: v for k, v in value.items() if k in _LIMITS and v is not None})


def command_result_of(value: Json) -> CommandResult:
    """Return a command's result from its object; `ValueError` while it runs."""
    if value.get("outcome") is None:
        raise ValueError("command: it has no outcome yet")
    return CommandResult(
        value.get("stdout") or "", value.get("stderr") or "", outcome_of(value["outcome"])
    )


def snapshot_of(value: Json) -> Snapshot:
    """Return the snapshot that an answer describes."""
    return Snapshot(
        id=value["id"],
        name=value["name"],
        template=value["template"],
        created_at=seconds_of(value["created_at"]),
        expires_at=seconds_of(value["expires_at"]),
        memory_bytes=value["memory_bytes"],
        files_bytes=value["files_bytes"],
        left_behind=tuple(value["left_behind"]),
        carries=value["carries"],
        durable=value.get("durable") is True,
    )


def change_of(value: Json) -> Change:
    """Return a change of a watched directory."""
    return Change(
        CHANGE_KINDS[value["kind"]],
        value["path"],
        value.get("target"),
        value.get("is_directory") is True,
    )


def seconds_of(text: str | None) -> float:
    """Return the seconds since the epoch of a timestamp; 0 for None."""
    return 0.0 if text is None else datetime.fromisoformat(text).timestamp()


# -- events ------------------------------------------------------------------------------------


def event_of(value: Json) -> Event:
    """Return the event of one line; an `end` without an outcome gets one with its verdict."""
    return _EVENTS[value["type"]](value)


def _text(value: Json) -> Event:
    return Event(value["seq"], value["type"], text=value["text"])


def _data(value: Json) -> Event:
    kind: Any = "display" if value["type"] == "image" else value["type"]
    return Event(value["seq"], kind, data=value["data"])


def _raised(value: Json) -> Event:
    error = ExecutionError(value["name"], value["value"], value["error"])
    return Event(value["seq"], "error", error=error)


def _error(value: Json) -> ExecutionError:
    return ExecutionError(value["name"], value["value"], value["traceback"], value.get("line"))


def _value(value: Json) -> Event:
    return Event(value["seq"], "value", value=value["value"])


def _tool_call(value: Json) -> Event:
    data = {key: each for key, each in value.items() if key not in ("seq", "type")}
    return Event(value["seq"], "tool_call", data=data)


def _gap(value: Json) -> Event:
    lost = {key: each for key, each in value.items() if key not in {"type", "seq"}}
    return Event(value["next"] - 1, "gap", value=lost)


def _end(value: Json) -> Event:
    outcome = value.get("outcome")
    if outcome is None:
        outcome = {"verdict": value["verdict"], "notes": ["nothing ran"]}
    return Event(value["seq"], "end", outcome=outcome_of(outcome))


_EVENTS: Mapping[str, Callable[[Json], Event]] = {
    "stdout": _text,
    "stderr": _text,
    "display": _data,
    "image": _data,
    "result": _data,
    "error": _raised,
    "value": _value,
    "tool_call": _tool_call,
    "gap": _gap,
    "end": _end,
}


# -- errors ------------------------------------------------------------------------------------

_PLAIN: Mapping[str, type[CellwallError]] = {
    "usage": UsageError,
    "not_found": NotFound,
    "conflict": Conflict,
    "idempotency": Conflict,
    "interrupted": Interrupted,
    "node_lost": NodeLost,
    "gone": NotFound,
    "sandbox_unavailable": SandboxUnavailable,
    "sandbox_broken": SandboxBroken,
    "unauthorized": AccessDenied,
    "forbidden": AccessDenied,
    "host_refused": AccessDenied,
    "origin_refused": AccessDenied,
}
_CAPACITY = ("capacity", "quota", "rate_limited", "store_busy", "store_full", "image_coming")
_PORT = ("port", "port_unreachable", "port_protocol")


def error_of(error: Json, status: int = 500, retry_after_s: float = 1.0) -> CellwallError:
    """Return the exception for an error object, with its message and remedy."""
    made = _made(error, status, retry_after_s)
    made.request_id = error.get("request_id") or None
    return made


def _full(error: Json, retry_after_s: float) -> CapacityError:
    message, remedy = _said(error)
    made: CapacityError
    if "quota" in error:
        quota = str(error["quota"])
        made = QuotaExceeded(quota, message, retry_after_s=retry_after_s, remedy=remedy)
    elif error.get("code") == ImageComing.code:
        made = ImageComing(message, retry_after_s=retry_after_s, remedy=remedy)
    else:
        made = CapacityError(message, retry_after_s=retry_after_s, remedy=remedy)
    position = error.get("position")
    made.position = position if isinstance(position, int) else None
    return made


def _file(error: Json, _retry_after_s: float) -> CellwallError:
    message, remedy = _said(error)
    return FileError(message, reason=str(error.get("reason", "invalid")), remedy=remedy)


def _port(error: Json, _retry_after_s: float) -> CellwallError:
    message, remedy = _said(error)
    return PortError(message, reason=str(error.get("reason", "refused")), remedy=remedy)


def _node(error: Json, retry_after_s: float) -> CellwallError:
    message, remedy = _said(error)
    return NodeUnreachable(message, retry_after_s=retry_after_s, remedy=remedy)


def _host(error: Json, _retry_after_s: float) -> CellwallError:
    message, remedy = _said(error)
    return HostUnsupported("server", message, remedy=remedy or "ask the operator")


_WITH_MORE: Mapping[str, Callable[[Json, float], CellwallError]] = {
    "file": _file,
    **dict.fromkeys(_CAPACITY, _full),
    **dict.fromkeys(_PORT, _port),
    "node_unreachable": _node,
    "host_unsupported": _host,
}
"""What makes the errors that say more than a message and a remedy."""


def _said(error: Json) -> tuple[str, str | None]:
    return str(error.get("message", "")), error.get("remedy")


def _made(error: Json, status: int, retry_after_s: float) -> CellwallError:
    code = str(error.get("code", ""))
    message, remedy = _said(error)
    if code in _WITH_MORE:
        return _WITH_MORE[code](error, retry_after_s)
    if code in _PLAIN:
        made = _PLAIN[code](message, remedy=remedy)
        if isinstance(made, Conflict):
            made.is_passing = error.get("passing") is True
        return made
    # Codes of HTTP alone: a wrong request of the client, or a failure of the server.
    return (UsageError if status < 500 else CellwallError)(message, remedy=remedy)
