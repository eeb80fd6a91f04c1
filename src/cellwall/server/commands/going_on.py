"""Commands of an earlier server that still run: each gets its record, its id and its owner again.

Called by `recovery`, before the server listens. The invariant: what a client learns of such a
command begins by saying that something is missing, and its events have higher numbers than those
that the earlier server gave.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cellwall.engine.parts.terminals import Terminal
from cellwall.model.errors import CellwallError, NotFound
from cellwall.server.commands.following import follow
from cellwall.server.commands.terminal_seat import Seat
from cellwall.server.executions.record import interrupted
from cellwall.server.executions.sandboxes import CommandRecord
from cellwall.server.schemas.requests import Window

if TYPE_CHECKING:
    from cellwall.engine.parts.kept_commands import KeptCommand
    from cellwall.server.executions.sandboxes import SandboxRecord
    from cellwall.server.state import State

_log = logging.getLogger("cellwall.server")
RETURN_S = 60.0
"""Least time that a terminal waits for its client after a restart, as long as sandboxes wait for
the next server."""
_OTHER_EVENTS = 16
"""Events of a command beside its output."""


async def go_on(state: State) -> None:
    """Go on with every command that was kept, in every sandbox that was taken over."""
    count = 0
    for owner in list(state.sandboxes.all.values()):
        if owner.ended_at is not None:
            continue
        for kept in owner.sandbox.commands.left:
            await _go_on(state, owner, kept)
            count += 1
    if count:
        _log.warning("went on with %d commands of the server before", count)


async def _go_on(state: State, owner: SandboxRecord, kept: KeptCommand) -> None:
    record = _record(state, owner, kept)
    try:
        commands = owner.sandbox.commands
        made = await commands.take_on(kept, record.spool.append, record.begins_after)
    except CellwallError as error:
        owner.add_command(record)
        why = "it ended while no server ran" if isinstance(error, NotFound) else error.message
        record.fail(interrupted(why))
        record.settle()
        state.sandboxes.ended_commands.add(owner, record)
        return
    if isinstance(made, Terminal):
        record.seat = Seat(state, owner, record, made)
        record.seat.wait(RETURN_S)
    follow(state, owner, record, made, keeps=True)


def _record(state: State, owner: SandboxRecord, kept: KeptCommand) -> CommandRecord:
    """Return a command's record as the earlier server had it, apart from its output."""
    note = kept.note
    argv = [str(word) for word in note["argv"]]
    spool_bytes = state.settings.spool_bytes
    record = CommandRecord(owner.owner, str(note["request_id"]), spool_bytes, argv)
    record.id = str(note["id"])
    record.started_at = float(note["started_at"])
    record.detach_s = float(note["detach_s"])
    if note["terminal"] is not None:
        record.terminal = Window.model_validate(note["terminal"])
    # An event of the earlier server's had at least one byte of the output that was allowed.
    record.begins_after = int(note["seq"]) + 2 * kept.output_bytes + _OTHER_EVENTS
    lost = {"unread_bytes": owner.sandbox.lost_bytes, "because": "the server was restarted"}
    record.spool.go_on_after(record.begins_after, lost)
    return record
