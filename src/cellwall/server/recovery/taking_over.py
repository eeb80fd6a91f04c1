"""Sandboxes of an earlier server that live on: each gets its owner, its row and its quota again.

Called by `recovery`, before the server listens. The invariant: a sandbox without a row, or without
room in its tenant's quota, is destroyed: no caller could reach it, or it would be too much.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cellwall.engine.scheduling.admission import Cost
from cellwall.model.errors import CapacityError
from cellwall.store.records.changes import EndSandbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.server.state import State
    from cellwall.store.records.rows import SandboxRow
    from cellwall.store.store import Store

_log = logging.getLogger("cellwall.server")


async def take_over(state: State, store: Store, at: float) -> Mapping[str, AsyncSandbox]:
    """Take over what the keeper has; return the living sandboxes by id."""
    arrived = await state.engine.take_over()
    refused = dict(arrived.refused)
    owners = {row.id: row for row in await store.sandboxes() if row.ended_at is None}
    living: dict[str, AsyncSandbox] = {}
    for sandbox in arrived.sandboxes:
        why_not = _reserved(state, sandbox, owners.get(sandbox.id))
        if why_not:
            refused[sandbox.id] = why_not
            await sandbox.close()
        else:
            living[sandbox.id] = sandbox
    for name, reason in refused.items():
        _log.warning("sandbox %s was not taken over: %s", name, reason)
    if ends := [EndSandbox(name, at, reason) for name, reason in refused.items() if name in owners]:
        await store.write(*ends)
    if living:
        _log.warning("took over %d sandboxes of the server before", len(living))
    return living


def _reserved(state: State, sandbox: AsyncSandbox, row: SandboxRow | None) -> str:
    """Reserve the limits of a sandbox until its end; return why it cannot stay."""
    if row is None:
        return "its creation had not been written down"
    try:
        promise = state.queue.hold(row.tenant, Cost.of(sandbox.limits))
    except CapacityError as error:
        return str(error)
    sandbox.on_ended(lambda _reason: promise.release())
    return ""
