"""Pages in the frames of a sandbox that stands still are the base's, and no others are.

A lie about them is the control: what it leaves out of a copy is looked for by the same look that
finds it in a copy that was made as ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.jail.inspect import page_frames
from cellwall.model.errors import CellwallError
from cellwall.runtimes.jail.sandbox import JailSandbox
from cellwall.runtimes.jail.stored import standing as standing_still
from kit.arena import Arena

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("rehearsed")]
_BEGIN = """
import sys
modules = list(dict.fromkeys(m for m in sys.modules.values() if type(m) is type(sys)))
for number, module in enumerate(modules): module.__dict__["_mark"] = str(number)
print(len(modules))
"""
"""Writes to memory all over the base: the names of every module that it has."""
_LOOK = "print(sum(int(each._mark) == n for n, each in enumerate(modules)))"


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))

    async def first() -> None:
        async with made.sandbox() as source:
            for each in await source.fork():
                await each.sandbox.close()

    made.do(first())
    yield made
    made.close()


async def _said(sandbox: AsyncSandbox, code: str) -> str:
    done = await sandbox.run(code)
    assert done.verdict.value == "ok", done.stderr
    return done.stdout.strip()


async def _looked(arena: Arena) -> tuple[str, str]:
    """What a session and a copy of it say of what it has written all over the base."""
    async with arena.sandbox() as source:
        written = await _said(source, _BEGIN)
        (fork,) = await source.fork()
        try:
            return written, await _said(fork.sandbox, _LOOK)
        finally:
            await fork.sandbox.close()


async def _standing(source: AsyncSandbox) -> standing_still.Standing:
    jail = source.live.runtime_sandbox
    assert isinstance(jail, JailSandbox)
    assert jail.entry is not None
    assert jail.entry.base is not None
    standing = (await jail.entry.base).standing
    assert isinstance(standing, standing_still.Standing)
    return standing


def test_copy_has_what_was_written_all_over_the_base(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And most pages of the base were known to be equal, in the source and in what became it."""
    found: list[tuple[int, int]] = []
    equal = page_frames.Standing.equal

    def noted(
        self: page_frames.Standing, first: page_frames.Reading, others: list[page_frames.Process]
    ) -> list[bytes]:
        known = equal(self, first, others)
        found.extend((flags.count(3), len(flags)) for flags in known)
        return known

    monkeypatch.setattr(page_frames.Standing, "equal", noted)
    written, looked = arena.do(_looked(arena))
    assert written == looked
    assert len(found) == 2
    known = [(count, size) for count, size in found if size]  # the kernel may have moved pages
    assert all(count > size // 2 for count, size in known)


def test_lie_about_equal_pages_is_noticed(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a session would lose what it wrote if a page were wrongly taken for equal."""
    equal = page_frames.Standing.equal

    def lied(
        self: page_frames.Standing, first: page_frames.Reading, others: list[page_frames.Process]
    ) -> list[bytes]:
        return [b"\3" * (self._size // 8) for _ in others]

    async def looked() -> str:
        try:
            return (await _looked(arena))[1]
        except (AssertionError, CellwallError):
            return "no session at all"

    written, before = arena.do(_looked(arena))
    monkeypatch.setattr(page_frames.Standing, "equal", lied)
    lost = arena.do(looked())
    monkeypatch.setattr(page_frames.Standing, "equal", equal)
    assert before == written != lost


def test_copies_are_right_while_the_kernel_moves_pages(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known then, and everything is compared."""
    moves = itertools.count()
    monkeypatch.setattr(page_frames, "_moves", lambda: (b"pgmigrate_success %d" % next(moves),))
    written, looked = arena.do(_looked(arena))
    assert written == looked


def test_guest_names_no_process_but_its_own(arena: Arena) -> None:
    async def named() -> None:
        async with arena.sandbox() as source:
            pid = (await _said(source, "import os; print(os.getpid())")).encode()
            jail = source.live.runtime_sandbox
            assert isinstance(jail, JailSandbox)
            found = standing_still.process_of(jail.pid, pid)
            assert found is not None
            assert found.inner_pid() == int(pid)
            found.close()
            for wrong in (b"1", b"0", b"x", b"", b"99999999", b"%d" % jail.pid):
                assert standing_still.process_of(jail.pid, wrong) is None

    arena.do(named())


def test_sandbox_that_stands_still_keeps_no_fork_server(arena: Arena) -> None:
    async def counted() -> None:
        async with arena.sandbox() as source:
            standing = await _standing(source)
            assert standing.sandbox.channel.is_open
            entry = standing.sandbox.entry
            assert entry is not None
            assert entry.is_used
        await arena.engine.pool.wait_buried()
        assert (entry.live, entry.standing, entry.is_used) == (1, 1, False)

    arena.do(counted())


def test_copies_are_made_without_the_one_that_stood_still() -> None:
    made = Arena(lambda: Engine(settings=EngineSettings(pool_min=0, pool_max=0)))

    async def ended() -> tuple[str, str]:
        async with made.sandbox() as source:
            for each in await source.fork():
                await each.sandbox.close()
            standing = await _standing(source)
            standing.sandbox.kill()
            await standing.sandbox.wait_ended()
            return await _looked(made)

    try:
        written, looked = made.do(ended())
        assert written == looked
    finally:
        made.close()
