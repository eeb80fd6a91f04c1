"""Sandboxes of an earlier server that live on: each gets its owner, its row and its quota again.

Called by `recovery`, before the server listens. The invariant: a sandbox without a row, or without
room in its tenant's quota, is destroyed: no caller could reach it, or it would be too much.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from cellwall.engine.scheduling.admission import Cost
from cellwall.model.errors import CapacityError
from cellwall.server.executions.promised import bind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.server.state import State
    from cellwall.store.records.rows import SandboxRow
    from cellwall.store.store import Store

_log = logging.getLogger("cellwall.server")


class Kept(NamedTuple):
    """The earlier server's sandboxes that were kept, by id."""

    living: Mapping[str, AsyncSandbox]
    refused: Mapping[str, str]
    """Why the others have ended."""
    settle: Callable[[], Awaitable[None]]
    """What `Arrivals` has under that name."""


async def take_over(state: State, store: Store) -> Kept:
    """Take over what the keeper has, if there is one."""
    arrived = await state.engine.take_over()
    refused = dict(arrived.refused)
    rows = {}
    if arrived.sandboxes:
        rows = {row.id: row for row in await store.sandboxes() if row.ended_at is None}
    living: dict[str, AsyncSandbox] = {}
    for sandbox in arrived.sandboxes:
        why_not = _reserved(state, sandbox, rows.get(sandbox.id))
        if why_not:
            refused[sandbox.id] = why_not
            await sandbox.close()
        else:
            living[sandbox.id] = sandbox
    for name, reason in refused.items():
        _log.warning("sandbox %s was not taken over: %s", name, reason)
    if living:
        _log.warning("took over %d sandboxes of the server before", len(living))
    return Kept(living, refused, arrived.settle)


def _reserved(state: State, sandbox: AsyncSandbox, row: SandboxRow | None) -> str:
    """Reserve the limits of a sandbox until its end; return why it cannot stay."""
    if row is None:
        return "its creation had not been written down"
    try:
        promise = state.queue.hold(row.tenant, Cost.of(sandbox.limits))
    except CapacityError as error:
        return str(error)
    bind(promise, sandbox, state.headroom)
    return ""
