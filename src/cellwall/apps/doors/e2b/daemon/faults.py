"""Faults: cellwall's errors in the words of the Connect protocol and of the file routes.

The invariant: the text of an exception that cellwall did not raise on purpose is not sent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError
from cellwall.model.errors import (
    AccessDenied,
    CapacityError,
    CellwallError,
    Conflict,
    FileError,
    NodeUnreachable,
    NotFound,
    UsageError,
)
from cellwall.server.core.errors import HttpError

_log = logging.getLogger("cellwall.e2b")
_OF_FILES: Mapping[str, str] = {
    "not_found": "not_found",
    "exists": "already_exists",
    "permission": "permission_denied",
    "too_large": "resource_exhausted",
    "no_space": "resource_exhausted",
}
_OF_HTTP: Mapping[int, str] = {
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    408: "deadline_exceeded",
    413: "resource_exhausted",
    429: "resource_exhausted",
}
_OF_CLASSES: tuple[tuple[type[CellwallError], str], ...] = (
    (UsageError, "invalid_argument"),
    (NotFound, "not_found"),
    (Conflict, "failed_precondition"),
    (CapacityError, "resource_exhausted"),
    (NodeUnreachable, "unavailable"),
    (AccessDenied, "permission_denied"),
)


def connect_error(error: Exception) -> ConnectError:
    """Return the protocol's error for any error."""
    if isinstance(error, ConnectError):
        return error
    if not isinstance(error, CellwallError):
        _log.error("a call to the daemon failed", exc_info=error)
        return ConnectError("internal", "an unexpected failure of cellwall; its log has more")
    return ConnectError(_code(error), sentence(error))


def _code(error: CellwallError) -> str:
    if isinstance(error, FileError):
        return _OF_FILES.get(error.reason, "invalid_argument")
    if isinstance(error, HttpError):
        return _OF_HTTP.get(error.status, "invalid_argument" if error.status < 500 else "internal")
    return next((code for kind, code in _OF_CLASSES if isinstance(error, kind)), "internal")


def sentence(error: CellwallError) -> str:
    """Return message and remedy."""
    return error.message if error.remedy is None else f"{error.message}; {error.remedy}"
