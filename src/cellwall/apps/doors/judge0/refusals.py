"""Errors in Judge0's shape: `{"error": …}`, faults by field, and no body where the key is wrong."""

from __future__ import annotations

from cellwall.apps.doors.judge0.fields import Invalid
from cellwall.apps.doors.refusal import Refusal
from cellwall.model.errors import AccessDenied, CapacityError, CellwallError
from cellwall.server.core.errors import HttpError, headers_of, status_of


def refusal(error: Exception) -> Refusal:
    """Return an error; one without a key has no body."""
    status, headers = status_of(error), headers_of(error)
    if isinstance(error, HttpError) and error.status in {401, 403}:
        return Refusal(error.status, None, headers)
    if isinstance(error, Invalid):
        return Refusal(422, error.faults, headers)
    if isinstance(error, CapacityError):
        status, text = 503, "queue is full"
    elif isinstance(error, AccessDenied):
        status, text = 403, str(error)
    elif isinstance(error, CellwallError) and (status < 500 or status == 507):
        text = str(error)
    else:
        status, text = 500, "internal error"
    return Refusal(status, {"error": text}, headers)
