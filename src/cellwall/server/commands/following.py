"""A command's record from its start to its end, or to the end of this server.

The routes start commands, `going_on` finds those of an earlier server. The invariant: a record
settles once, unless the command goes on in the next server: then nothing of it ends here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellwall.engine.parts.commands import Command
    from cellwall.server.executions.sandboxes import CommandRecord, SandboxRecord
    from cellwall.server.state import State

_NOTED_CHARS = 400
"""Characters of a command's words that outlive the server."""


def follow(
    state: State, owner: SandboxRecord, record: CommandRecord, made: Command, *, keeps: bool
) -> None:
    """Register a started command, and record its end in the background.

    With `keeps` it goes on in the next server, if its sandbox does.
    """
    record.command = made
    record.on_start(made.attempt)
    owner.add_command(record)
    owner.log("command started", command=record.id)
    if keeps and owner.sandbox.is_kept:
        record.is_kept = owner.sandbox.commands.keep(made, note_of(record))
        if not record.is_kept and made.is_running:
            owner.log("command not kept", command=record.id)
    record.task = state.tasks.spawn(_follow(state, owner, record, made))


def note_of(record: CommandRecord) -> dict[str, Any]:
    """Return what the next server has to know of a command; no variable and no output of it."""
    return {
        "id": record.id,
        "argv": _cut(record.argv),
        "request_id": record.request_id,
        "started_at": record.started_at,
        "terminal": None if record.terminal is None else record.terminal.model_dump(),
        "detach_s": record.detach_s,
        "seq": record.begins_after,
    }


def _cut(argv: list[str]) -> list[str]:
    """Return the first words of a command, for lists."""
    found: list[str] = []
    left = _NOTED_CHARS
    for word in argv:
        if len(word) >= left:
            return [*found, f"{word[:left]}…"]
        found.append(word)
        left -= len(word) + 1
    return found


async def _follow(state: State, owner: SandboxRecord, record: CommandRecord, made: Command) -> None:
    """Record how the command ended."""
    try:
        record.result = await made.wait()
        state.observer.ended(owner.owner, owner.template, record.result.outcome)
        if state.audit is not None:
            names = f"sandbox:{owner.id} command:{record.id}"
            state.audit.command_ended(owner.owner, names, record.result.outcome)
        outcome = record.result.outcome.as_json()
        owner.log("command ended", command=record.id, verdict=outcome["verdict"])
        # A terminal's output is not events; its end is one.
        record.spool.finish({"type": "end", "verdict": outcome["verdict"], "outcome": outcome})
    except asyncio.CancelledError:
        if is_left(state, owner, record):
            record.leave()
        raise
    except Exception as error:  # noqa: BLE001 - it belongs to the command's caller
        record.fail(error)
    finally:
        if not record.is_left:
            record.settle()
            state.sandboxes.ended_commands.add(owner, record)


def is_left(state: State, owner: SandboxRecord, record: CommandRecord) -> bool:
    """Whether this server stops, and the command goes on in the next one."""
    return state.is_stopping and record.is_kept and owner.ended_at is None
