"""Sandboxes of an earlier server that go on: each gets its owner, its row and its quota again.

Called by `recovery`, before the server listens. The invariant: a sandbox without a row, or without
room in its tenant's quota, is destroyed: no caller could reach it, or it would be too much. One
that is hibernated needs room only once it comes back, and a key of its tenant before. One of
a node that this one no longer is was told to be lost.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from cellwall.engine.scheduling.admission import Cost
from cellwall.model.errors import CapacityError
from cellwall.model.ids import is_of_another, node_of
from cellwall.server.executions.promised import bind, bind_sleeping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.server.state import State
    from cellwall.store.records.rows import SandboxRow
    from cellwall.store.store import Store

_log = logging.getLogger("cellwall.server")
_UNREAD = "what was stored of it is damaged: {}"


class Kept(NamedTuple):
    """The earlier server's sandboxes that were kept, by id."""

    living: Mapping[str, AsyncSandbox]
    refused: Mapping[str, str]
    """Why the others have ended."""
    settle: Callable[[], Awaitable[None]]
    """What `Arrivals` has under that name."""


async def take_over(state: State, store: Store) -> Kept:
    """Take over what the keeper has, if there is one, and what is hibernated."""
    arrived = await state.engine.take_over()
    refused = dict(arrived.refused)
    rows = {}
    if arrived.sandboxes or arrived.unread:
        rows = {row.id: row for row in await store.sandboxes() if row.ended_at is None}
    for name in arrived.unread.keys() & rows.keys():
        refused[name] = _UNREAD.format(arrived.unread[name])
        if (durable := state.engine.copies.durable) is not None:
            durable.remove(name)
    living: dict[str, AsyncSandbox] = {}
    for sandbox in arrived.sandboxes:
        why_not = _why_not(state, sandbox, rows.get(sandbox.id))
        if why_not:
            refused[sandbox.id] = why_not
            await sandbox.close()
        else:
            living[sandbox.id] = sandbox
    for name, reason in refused.items():
        _log.warning("sandbox %s was not taken over: %s", name, reason)
    if living:
        asleep = sum(each.status == "hibernated" for each in living.values())
        _log.warning(
            "took over %d sandboxes of the server before, %d of them hibernated",
            len(living),
            asleep,
        )
    return Kept(living, refused, arrived.settle)


def _why_not(state: State, sandbox: AsyncSandbox, row: SandboxRow | None) -> str:
    """Reserve the limits of a sandbox until its end; return why it cannot stay."""
    if is_of_another(sandbox.id, state.engine.settings.node):
        return f"its node {node_of(sandbox.id)} was lost"
    if row is None:
        return "its creation had not been written down, or its end had"
    if sandbox.tenant != row.tenant:
        return "its record is another tenant's"
    if sandbox.status == "hibernated":
        return _sleeping(state, sandbox, row.tenant)
    try:
        promise = state.queue.hold(row.tenant, Cost.of(sandbox.limits))
    except CapacityError as error:
        return str(error)
    bind(promise, sandbox, state.headroom)
    return ""


def _sleeping(state: State, sandbox: AsyncSandbox, tenant: str) -> str:
    """Let a hibernated sandbox wait for its caller, if there can be one."""
    doors = {each.tenant for each in state.settings.doors.values()}
    if not state.keys.holders(tenant) and tenant not in doors:
        return "no key of its tenant is accepted any more"
    bind_sleeping(state, sandbox, tenant)
    return ""
