"""From an exception to a status and the error envelope; the only place that decides this.

Handlers raise, and `guards` calls this module. The exceptions of the engine are in `model.errors`.
The invariant: the text of an exception that cellwall did not raise on purpose never leaves the
server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from cellwall.images.image import PullFailed
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    FileError,
    HostUnsupported,
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
from cellwall.runtimes.channel.replies import ChannelLost
from cellwall.store.records.errors import StoreFull
from cellwall.wire.answer import error_envelope


class HttpError(CellwallError):
    """A refusal that only HTTP knows."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        remedy: str | None = None,
        headers: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """`extra` is merged into the envelope's `error` object."""
        super().__init__(message, remedy=remedy)
        self.status = status
        self.code = code
        self.headers = headers or {}
        self.extra = extra or {}


_HOST_PATH = re.compile(r"(?<![\w/])/(?:[\w.+@-]+/)+[\w.+@-]*")
LACKS = "cellwall-lacks"
"""Header by which a node says what it lacks, and no client sees: kind and name, as `volume:data`.
"""
_FORM = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_BROKEN = "a sandbox could not be built or spoken to; it was destroyed"

_STATUS: dict[type[CellwallError], int] = {
    UsageError: 400,
    NotFound: 404,
    Conflict: 409,
    PortError: 502,
    PullFailed: 502,
    CapacityError: 503,
    QuotaExceeded: 429,
    SandboxUnavailable: 410,
    Interrupted: 503,
    NodeUnreachable: 503,
    StoreFull: 507,
    HostUnsupported: 503,
    SandboxBroken: 500,
    ChannelLost: 410,
}
INTERRUPTING = frozenset({Interrupted.code, NodeLost.code})
"""Codes of failures by which an execution that had begun is `interrupted`: not the program was the
reason, and how far it came is not known."""
_FILE_STATUS = {
    "not_found": 404,
    "exists": 409,
    "permission": 403,
    "too_large": 413,
    "no_space": 507,
}


def stopping() -> CapacityError:
    """Return the error for requests to a server that is stopping."""
    return CapacityError(
        "server: it stops, and begins nothing new",
        retry_after_s=5,
        remedy="try again when it is back",
    )


def lacking(error: CellwallError, kind: str, name: str) -> HttpError:
    """Return a node's refusal of what names a thing that is not here: its gateway knows by it.

    `error`: what a server alone raises. Raised before anything begins. SECURITY: the name is a
    caller's; what can be the name of nothing is not said in a header.
    """
    return HttpError(
        status_of(error),
        error.code,
        error.message,
        remedy=error.remedy,
        headers={LACKS: f"{kind}:{name}"} if _FORM.fullmatch(name) else {},
    )


def wrong_method(method: str, others: Iterable[str]) -> HttpError:
    """Return the refusal of a method that a path has not; `others` are those that it has."""
    allowed = ", ".join(sorted(others))
    return HttpError(
        405,
        "method",
        f"method: {method[:20]} is not for this path",
        remedy=f"use {allowed}",
        headers={"allow": allowed},
    )


def status_of(error: BaseException) -> int:
    """Return the HTTP status that stands for `error`."""
    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, FileError):
        return _FILE_STATUS.get(error.reason, 400)
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return 500


def headers_of(error: BaseException) -> dict[str, str]:
    """Return the headers that belong to the answer about `error`."""
    if isinstance(error, (CapacityError, NodeUnreachable)):
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    return error.headers if isinstance(error, HttpError) else {}


def envelope(error: BaseException, request_id: str) -> dict[str, Any]:
    """Return the body of an error answer."""
    body = error_envelope(error, request_id)
    if isinstance(error, SandboxBroken):
        body["error"]["message"] = _BROKEN  # the full text names paths of the host; the log has it
        body["error"]["remedy"] = "quote the request id to the operator"
    if isinstance(error, HostUnsupported):
        body["error"]["message"] = _HOST_PATH.sub("…", error.message)
    if isinstance(error, FileError):
        body["error"]["reason"] = error.reason
    if isinstance(error, Conflict) and error.is_passing:
        body["error"]["passing"] = True
    if isinstance(error, CapacityError):
        body["error"].update(_about_capacity(error))
    if isinstance(error, ChannelLost):
        body["error"]["code"] = SandboxUnavailable.code
    if isinstance(error, HttpError):
        body["error"].update(error.extra)
    return body


def _about_capacity(error: CapacityError) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if error.position is not None:
        about["position"] = error.position
    if isinstance(error, QuotaExceeded):
        about["quota"] = error.quota
    return about


def failure(error: BaseException, request_id: str) -> dict[str, Any]:
    """Return the error object alone, for the end of a stream that has begun."""
    inner: dict[str, Any] = envelope(error, request_id)["error"]
    return inner
