"""Recovery of what an earlier server left in the store: every id gets its true state again.

Called once by `State.open`, before the server listens. Left processes are removed by the engine's
sweep. The invariant: an execution that had started never runs again; one that only waited waits
again, in its old order. A node that has another name than before was told to be lost with all that
it had, so of that nothing begins and nothing lives on.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import NodeLost
from cellwall.model.ids import node_of
from cellwall.server.audit.chain import appending
from cellwall.server.commands.going_on import go_on
from cellwall.server.core.errors import failure
from cellwall.server.core.times import steady
from cellwall.server.executions.disk_quota import FREE_BYTES
from cellwall.server.executions.observer import end_entry
from cellwall.server.executions.record import blank, complete, failed, interrupted
from cellwall.server.recovery.taking_over import take_over
from cellwall.server.streaming.event_line import Line
from cellwall.server.streaming.overflow import chunk_of
from cellwall.store.records.changes import Change, Ended
from cellwall.store.records.recovery import Sandboxes
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.model.errors import CellwallError
    from cellwall.server.state import State
    from cellwall.store.records.rows import ExecutionRow, Leftover
    from cellwall.store.store import Store

_log = logging.getLogger("cellwall.server")
_PAGE = 1000


async def recover(state: State, store: Store) -> None:
    """End interrupted executions, queue the waiting ones again, restore the sandboxes' records."""
    began = time.monotonic()
    at, node = steady(), state.engine.settings.node
    endings: dict[str, tuple[ExecutionRow, Ended]] = {}

    def end(leftover: Leftover) -> tuple[Change, ...]:
        change = ending(leftover, at)
        endings[leftover.row.id] = (leftover.row, change)
        row = leftover.row
        entry = end_entry(row.id, row.tenant, change.answer, row.request_id)
        return (change, appending(entry))

    kept = await take_over(state, store)
    found = await store.recover(at, end, Sandboxes(kept.living, kept.refused), node)
    for row, change in endings.values():
        state.notices.ended(row.tenant, row.asked, partial(_answer_of, change))
    state.ledger.go_on_after(found.last_seq)
    state.sandboxes.restore(await store.sandboxes(), kept.living)
    await go_on(state)
    await kept.settle()
    state.kept.restore(await store.kept(FREE_BYTES))
    after, restored = 0, 0
    while rows := await store.queued(after, _PAGE):
        for row in rows:
            state.executions.restore(row)
        after = rows[-1].seq
        restored += len(rows)
    if found.lost:
        _log.warning("node: of lost names it had %d executions, which are over", len(found.lost))
    if restored or found.interrupted or found.cancelled or found.sandboxes:
        _log.warning(
            "found in the store: %d executions wait, %d were interrupted, %d are cancelled, "
            "%d sandboxes have ended; took %.2f s",
            restored,
            len(found.interrupted),
            len(found.cancelled),
            len(found.sandboxes),
            time.monotonic() - began,
        )


def _answer_of(change: Ended) -> dict[str, Any]:
    return change.answer


def ending(leftover: Leftover, at: float) -> Ended:
    """Return the end of an execution left behind; `at` is in seconds since the epoch."""
    row = leftover.row
    value = _ENDS[leftover.because](row)
    end = {
        "seq": leftover.last_seq + 1,
        "type": "end",
        "verdict": value["verdict"],
        "outcome": None,
        "failure": value.get("failure"),
    }
    chunk = chunk_of(row.id, [Line(leftover.last_seq + 1, "end", one_line(end))])
    return Ended(row.id, at, value, (chunk,))


def _interrupted(row: ExecutionRow) -> dict[str, Any]:
    return _failed(row, interrupted("the server ended while it ran"))


def _lost(row: ExecutionRow) -> dict[str, Any]:
    error = NodeLost(
        f"execution: its node {node_of(row.id)} was lost",
        remedy="it is not run again by itself; send it anew if that does no harm",
    )
    return _failed(row, error)


def _failed(row: ExecutionRow, why: CellwallError) -> dict[str, Any]:
    error = failure(why, row.request_id)
    value = {**blank(row.id, row.asked), **failed(error)}
    return complete(value, row.asked, row.started_at)


def _cancelled(row: ExecutionRow) -> dict[str, Any]:
    words = "cancelled before it ran: the server ended, and its caller's connection with it"
    value = {**blank(row.id, row.asked), "status": "error", "verdict": "cancelled", "error": words}
    return complete(value, row.asked, None)


_ENDS = {"interrupted": _interrupted, "cancelled": _cancelled, "lost": _lost}
