"""Answers in E2B's shapes: JSON of any value, and errors as each of its planes writes them.

The control plane's and the files' errors have a number as `code`, remote procedure calls' a word.
The invariant: every refusal is JSON with `code` and `message`, and the text of an exception that
cellwall did not raise on purpose never leaves the server.
"""

from __future__ import annotations

import http
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.refusal import Refusal, send
from cellwall.model.errors import (
    AccessDenied,
    CapacityError,
    NodeLost,
    NodeUnreachable,
    QuotaExceeded,
    SandboxUnavailable,
)
from cellwall.server.auth.ownership import NotYours
from cellwall.server.core.errors import HttpError, envelope, headers_of, status_of

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

PLACE = "cellwall.e2b"
"""Name in a request's scope of the place that it is for, if it is for a sandbox."""
REFUSAL = "cellwall.e2b.refusal"
"""Name in a request's scope of what is wrong with its signature."""
_RPC = ("/process.", "/filesystem.")
"""Beginnings of the paths of remote procedure calls."""
_WORDS = {
    400: "invalid_argument", 401: "unauthenticated", 403: "permission_denied", 404: "not_found",
    409: "already_exists", 413: "resource_exhausted", 429: "resource_exhausted",
    501: "unimplemented", 503: "unavailable", 504: "deadline_exceeded",
}  # fmt: skip
_FULL = "maximum number of concurrent sandboxes"
"""Words by which task runners know that a place becomes free when a sandbox ends."""
_FULL_OF_BUILDS = "maximum number of concurrent template builds"
"""The same of builds."""


_LOST = ": the machine that had it was lost"


class Gone(HttpError):
    """The sandbox that a request is for does not exist, has ended, or stands still."""

    def __init__(self, sandbox_id: str, port: int | None = None, *, is_lost: bool = False) -> None:
        """With `port` the sandbox runs, and that port of it is closed.

        `is_lost`: its node was lost.
        """
        text = f"The sandbox was not found{_LOST if is_lost else ''}"
        if port is not None:
            text = "The sandbox is running but port is not open"
        super().__init__(502, "sandbox_unavailable", text)
        self.sandbox_id = sandbox_id
        self.port = port

    def as_json(self) -> dict[str, Any]:
        """Return the body that clients know."""
        about = {} if self.port is None else {"port": self.port}
        return {"sandboxId": self.sandbox_id, "message": self.message, **about, "code": 502}


def refused(field: str, why: str) -> HttpError:
    """Return the 400 about one option that cannot be had."""
    return HttpError(400, "usage", f"{field}: {why}")


def unsupported(what: str) -> HttpError:
    """Return the 501 about a whole operation."""
    return HttpError(501, "unimplemented", f"{what}: this server does not have it")


def missing(message: str) -> HttpError:
    """Return a 404."""
    return HttpError(404, "not_found", message)


async def empty(request: Request) -> None:
    """Answer 204, without a body."""
    request.has_answered = True
    await request.send({"type": "http.response.start", "status": 204, "headers": []})
    await request.send({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse(request: Request, error: Exception) -> None:
    """Answer with an error, in the shape of the plane that the path belongs to."""
    place = request.scope.get(PLACE)
    sandbox_id = "" if place is None else place.sandbox_id
    made = refusal(error, request.scope["path"], sandbox_id, request.scope.get(REFUSAL, ""))
    await send(request, made)


def refusal(error: Exception, path: str, sandbox_id: str = "", about_key: str = "") -> Refusal:
    """Return an error in the shape of the plane that a path belongs to.

    `sandbox_id`: of the sandbox that Host or a header names; `about_key`: what is wrong with a
    signature.
    """
    if isinstance(error, NotYours) and sandbox_id:
        error = Gone(sandbox_id)
    if isinstance(error, NodeLost) and sandbox_id:
        error = Gone(sandbox_id, is_lost=True)
    if isinstance(error, Gone):
        return Refusal(error.status, error.as_json())
    status, message = _told(error, about_key, is_placed=bool(sandbox_id))
    headers = dict(headers_of(error)) | _retry(status, error)
    body: dict[str, Any] = {"code": status, "message": message}
    if path.startswith(_RPC):
        body["code"] = _WORDS.get(status, "internal")
    return Refusal(status, body, headers)


def _told(error: Exception, about_key: str, *, is_placed: bool) -> tuple[int, str]:
    status = 403 if isinstance(error, AccessDenied) else status_of(error)
    about = envelope(error, "")["error"]
    message = str(about["message"])
    if about["remedy"] is not None:
        message = f"{message}; {about['remedy']}"
    if status == 401:
        message = about_key or message
    if isinstance(error, SandboxUnavailable) and not is_placed:
        status = 404
    if isinstance(error, QuotaExceeded) and status == 429 and error.quota in _SANDBOX_QUOTAS:
        message = f"{_FULL}: {message}"
    if isinstance(error, QuotaExceeded) and error.quota == "builds":
        message = f"{_FULL_OF_BUILDS}: {message}"
    if not _is_standard(status):
        status = 500
    return status, message


_SANDBOX_QUOTAS = frozenset({"sandboxes", "memory_mb", "cpus", "file_mb"})


def _retry(status: int, error: Exception) -> dict[str, str]:
    """Say that a repetition is wrong, where a client would repeat by itself."""
    if status < 500 or isinstance(error, (CapacityError, NodeUnreachable)):
        return {}
    return {"should-retry": "false"}


def _is_standard(status: int) -> bool:
    try:
        http.HTTPStatus(status)
    except ValueError:
        return False
    return True
