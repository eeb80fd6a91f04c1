"""Finding of the sandbox that a path of the control plane names, among the caller's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.answers import missing
from cellwall.model.errors import NotFound

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.client.sandbox import AsyncSandbox


async def existing(visit: Visit, *, is_running: bool = False) -> AsyncSandbox:
    """Return the sandbox, running or paused; with `is_running` a paused one is not found either.

    Raises the 404 for one that has ended, never was, or is another tenant's.
    """
    sandbox_id = visit.request.params["sandbox_id"]
    try:
        found = await visit.client.attach(sandbox_id)
    except NotFound:
        raise _none(sandbox_id) from None
    if found.status == "stopped" or (is_running and found.status == "paused"):
        raise _none(sandbox_id)
    return found


def _none(sandbox_id: str) -> Exception:
    return missing(f"Sandbox {sandbox_id[:64]!r} not found")
