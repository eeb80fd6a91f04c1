"""Ended commands: found for a while, in bounded memory, and nobody's push out another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from cellwall.model.execution import CommandResult
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Verdict
from cellwall.server.executions.ended_commands import EndedCommands
from cellwall.server.executions.sandboxes import CommandRecord

if TYPE_CHECKING:
    from cellwall.server.executions.sandboxes import SandboxRecord

_OUTCOME = Outcome(Verdict.OK, Isolation("jail", IsolationLevel.NAMESPACE, "d" * 64))
KIB = 1024


class Box:
    """What of a sandbox's record matters here."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.commands: dict[str, CommandRecord] = {}

    def end(
        self, kept: EndedCommands, stdout: str = "", argv: list[str] | None = None
    ) -> CommandRecord:
        record = CommandRecord(self.owner, "r1", KIB, argv or ["true"])
        self.commands[record.id] = record
        record.result = CommandResult(stdout, "", _OUTCOME)
        record.settle()
        kept.add(cast("SandboxRecord", self), record)
        return record


def looped(test: Callable[[], None]) -> Callable[[], None]:
    async def run() -> None:
        test()

    return lambda: asyncio.run(run())


def many_outputs(kept: EndedCommands, box: Box) -> None:
    for _ in range(20):
        box.end(kept, stdout="a" * (100 * KIB))


def wide_outputs(kept: EndedCommands, box: Box) -> None:
    for _ in range(20):
        box.end(kept, stdout="\U0001f9f1" * (25 * KIB))


def long_arguments(kept: EndedCommands, box: Box) -> None:
    for _ in range(20):
        box.end(kept, argv=["true", "x" * (100 * KIB)])


@pytest.mark.parametrize("fill", [many_outputs, wide_outputs, long_arguments])
def test_what_a_tenant_keeps_is_half_at_most(fill: Callable[[EndedCommands, Box], None]) -> None:
    @looped
    def run() -> None:
        kept, alice, bob = EndedCommands(1024 * KIB), Box("alice"), Box("bob")
        others = bob.end(kept, stdout="b" * (100 * KIB))
        fill(kept, alice)
        assert 4 <= len(alice.commands) <= 5
        assert kept.kept_bytes < (512 + 110) * KIB
        assert others.id in bob.commands

    run()


def test_newest_stays_however_large() -> None:
    @looped
    def run() -> None:
        kept, box = EndedCommands(100 * KIB), Box("alice")
        box.end(kept)
        large = box.end(kept, stdout="a" * (500 * KIB))
        assert list(box.commands) == [large.id]
        small = box.end(kept)
        assert list(box.commands) == [small.id]

    run()


def test_all_together_are_bounded_and_who_has_most_gives() -> None:
    @looped
    def run() -> None:
        kept = EndedCommands(1024 * KIB)
        boxes = [Box(name) for name in "abcd"]
        for box in boxes:
            for _ in range(4):
                box.end(kept, stdout="a" * (100 * KIB))
        assert kept.kept_bytes <= 1024 * KIB
        left = [len(box.commands) for box in boxes]
        assert sum(left) >= 9
        assert max(left) - min(left) <= 1

    run()


def test_time_and_number_are_bounds_too() -> None:
    @looped
    def run() -> None:
        kept, box = EndedCommands(1 << 30), Box("alice")
        records = [box.end(kept) for _ in range(300)]
        assert list(box.commands) == [each.id for each in records[44:]]
        running = CommandRecord("alice", "r1", KIB, ["sleep"])
        box.commands[running.id] = running
        kept.forget(running)
        ended_at = records[200].ended_at
        assert ended_at is not None
        kept.expire(ended_at)
        assert records[200].id not in box.commands
        kept.expire((records[-1].ended_at or 0.0) + 1)
        assert list(box.commands) == [running.id]
        assert kept.kept_bytes == 0

    run()
