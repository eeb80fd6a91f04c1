"""FI-25, FI-33: deleted while it starts, while it is deleted, twice; and handles of what is gone.

Deleting is allowed from every state and ends soon. A handle belongs to one sandbox, not to the
slot (id, cgroup, descriptor numbers) that another one has by now.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cellwall import SandboxUnavailable, Verdict
from kit.arena import LIMITS, Arena
from kit.jail.control_groups import is_occupied

pytestmark = pytest.mark.attack
_SOON_S = 10.0


@pytest.fixture(autouse=True)
def _settled(arena: Arena) -> None:
    arena.settle()


@pytest.mark.parametrize("spins", [0, 1, 3, 10, 30, 100, 300])
def test_sandbox_given_up_while_it_starts_leaves_nothing(arena: Arena, spins: int) -> None:
    async def attack() -> float:
        task = asyncio.ensure_future(arena.engine.create_sandbox(limits=LIMITS))
        for _ in range(spins):
            await asyncio.sleep(0)
        began = time.monotonic()
        task.cancel()
        for made in await asyncio.gather(task, return_exceptions=True):
            if not isinstance(made, BaseException):
                await made.close()
        assert (await arena.arun("print('fine')")).ok
        return time.monotonic() - began

    # Empty cgroups are not counted: what was given up is taken down in the background.
    with arena.leaving_nothing(is_occupied):
        assert arena.do(attack()) < _SOON_S
    assert arena.engine.statistics().sandboxes == 0


@pytest.mark.parametrize("times", [2, 10])
def test_sandbox_closed_many_times_at_once_ends_once(arena: Arena, times: int) -> None:
    async def attack() -> list[str]:
        reasons: list[str] = []
        sandbox = await arena.engine.create_sandbox(limits=LIMITS)
        sandbox.on_ended(reasons.append)
        up = asyncio.Event()
        cell = sandbox.run(
            "print('up', flush=True)\nimport time; time.sleep(60)", on_event=lambda _: up.set()
        )
        running = asyncio.ensure_future(cell)
        await up.wait()
        await asyncio.gather(*(sandbox.close() for _ in range(times)))
        ended = await asyncio.wait_for(running, _SOON_S)
        assert ended.verdict is Verdict.CANCELLED
        await sandbox.close()
        return reasons

    with arena.leaving_nothing():
        assert arena.do(attack()) == ["it was closed"]


# -- FI-33 -----------------------------------------------------------------------------------


def _slot(sandbox: Any) -> tuple[Any, ...]:
    made = sandbox.live.runtime_sandbox._resources
    kept = {path for _, path in made.groups.paths if "spare" in path}
    return (made.child.pidfd, made.work_fd, frozenset(kept))


def test_handle_of_a_gone_sandbox_does_nothing_to_who_has_its_slot(arena: Arena) -> None:
    """Descriptor numbers and cgroup directories are used again; the control is that they are."""

    async def attack() -> None:
        # Several: a number may go to something else of the engine's, which keeps it.
        gone = [await arena.engine.create_sandbox(limits=LIMITS) for _ in range(4)]
        slots = [set(_slot(each)[:2]) for each in gone]
        inners = [each.live.runtime_sandbox for each in gone]
        for each in gone:
            await each.close()
        await arena.engine.wait_settled()
        successors = [await arena.engine.create_sandbox(limits=LIMITS) for _ in range(6)]
        try:
            taken = {number for each in successors for number in _slot(each)[:2]}
            again = [place for place, slot in enumerate(slots) if slot & taken]
            assert again, "no slot was used again: this proves nothing"
            old, inner = gone[again[0]], inners[again[0]]
            inner.kill()
            await inner.aclose()
            await old.close()
            with pytest.raises(SandboxUnavailable, match="it has ended"):
                await old.run("1")
            with pytest.raises(SandboxUnavailable, match="it has ended"):
                await old.interrupt()
            for each in successors:
                assert (await each.run("6 * 7")).ok
            assert len({each.id for each in (old, *successors)}) == 7
        finally:
            for each in successors:
                await each.close()

    with arena.leaving_nothing():
        arena.do(attack())
