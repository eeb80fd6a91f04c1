"""Failures: errors of a node as JSON, and the same errors on the driver.

Never pickled: an error's text may come from a sandbox. The text of an exception that cellwall did
not raise on purpose stays in the node's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    FileError,
    HostUnsupported,
    QuotaExceeded,
)
from cellwall.wire.answer import error_envelope
from cellwall.wire.reading import error_of


def failure(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON."""
    found: dict[str, Any] = error_envelope(error, "")["error"]
    if isinstance(error, FileError):
        found["reason"] = error.reason
    if isinstance(error, Conflict):
        found["passing"] = error.is_passing
    if isinstance(error, CapacityError):
        found["retry_after_s"] = error.retry_after_s
    if isinstance(error, QuotaExceeded):
        found["quota"] = error.quota
    if isinstance(error, HostUnsupported):
        found["feature"] = error.feature
    return found


def raised(found: Mapping[str, Any], node: str) -> CellwallError:
    """Return the error of a node; its message begins with the node's name."""
    told = {**found, "message": f"node {node}: {found['message']}"}
    if found.get("code") == HostUnsupported.code:
        return HostUnsupported(
            str(found.get("feature", "node")),
            told["message"],
            remedy=found.get("remedy") or "ask the operator of that node",
        )
    return error_of(told, retry_after_s=float(found.get("retry_after_s", 1.0)))
