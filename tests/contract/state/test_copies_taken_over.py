"""Copies of sandboxes that an engine took over from one that was killed (design/0040)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellwall import AsyncSandbox, Engine
from cellwall.engine.state.durable import _BASES as BASES
from cellwall.jail.inspect import page_frames
from cellwall.model.errors import CellwallError, Conflict
from cellwall.runtimes.jail import runtime
from cellwall.runtimes.jail.keeping.client import KeeperClient
from cellwall.runtimes.jail.runtime import JailRuntime
from cellwall.runtimes.jail.sandbox import JailSandbox
from kit.copies.left_engine import engine, run_left

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


@contextlib.asynccontextmanager
async def _taken_over(
    folder: Path, *, stores: bool = True
) -> AsyncIterator[tuple[Engine, list[AsyncSandbox]]]:
    """The next engine, with what it took over, all of which ends."""
    made = engine(folder, stores=stores)
    try:
        arrivals = await made.take_over()
        assert not arrivals.refused
        await arrivals.settle()
        yield made, list(arrivals.sandboxes)
        for each in arrivals.sandboxes:
            await each.close()
    finally:
        await made.aclose()
        with contextlib.suppress(CellwallError):  # it is about to end
            if keeper := KeeperClient.find(folder / "state"):
                os.kill(keeper.pid, signal.SIGKILL)
                keeper.close()


async def _said(sandbox: AsyncSandbox) -> str:
    done = await sandbox.run("x += 1; print(x, next(steps))")
    assert done.verdict.value == "ok", done.stderr
    return done.stdout


async def _copies(source: AsyncSandbox, count: int) -> list[AsyncSandbox]:
    made = [each.sandbox for each in await source.fork(count)]
    assert None not in made
    return [each for each in made if each is not None]


@pytest.mark.skipif(not page_frames.are_shown(), reason="no page frames: no source waits")
def test_one_that_stood_still_for_a_killed_engine_goes_on_and_is_copied(tmp_path: Path) -> None:
    async def check() -> None:
        async with _taken_over(tmp_path) as (_engine, (source,)):
            copies = await _copies(source, 2)
            assert {await _said(each) for each in (source, *copies)} == {"42 1\n"}
            for each in copies:
                await each.close()

    run_left(tmp_path, "look")
    asyncio.run(check())


def test_one_that_was_taken_over_hibernates_and_goes_on(tmp_path: Path) -> None:
    """By hand, twice: it is copied by the stored base, then by that of its new processes."""

    async def check() -> None:
        async with _taken_over(tmp_path) as (_engine, (source,)):
            for said in ("42 1\n", "43 2\n"):
                assert await source.hibernate() == ()
                assert str(source.status) == "hibernated"
                assert await _said(source) == said

    run_left(tmp_path, "1")
    asyncio.run(check())


def test_one_that_was_taken_over_keeps_its_files_alone(tmp_path: Path) -> None:
    """Also where its session cannot be copied; its variables are those that its init has."""

    async def check() -> None:
        async with _taken_over(tmp_path, stores=False) as (made, (source,)):
            with pytest.raises(Conflict, match="an earlier server started"):
                await source.hibernate()  # the control
            await source.files.write("note", "kept")
            for _ in range(2):
                await source.hibernate(keep="files")
                assert str(source.status) == "hibernated"
                assert "NameError" in (await source.run("x")).stderr
                assert await source.files.read("note") == "kept"
                assert (await source.commands.run("echo $OWN")).stdout == "mine\n"
            assert made.copies_room.used_bytes == 0

    run_left(tmp_path, "unkept")
    asyncio.run(check())


def test_engine_that_ends_in_order_waits_for_what_is_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first sandbox has just been made: the base is still being written."""

    async def check() -> None:
        monkeypatch.setattr(runtime, "_KEPT_S", 60.0)  # else it is a matter of the load
        (tmp_path / "state").mkdir()
        made = engine(tmp_path)
        sandbox = await made.create_sandbox()
        held = sandbox.live.runtime_sandbox
        assert isinstance(held, JailSandbox)
        assert held.base is None  # the control
        await made.aclose()
        async with _taken_over(tmp_path) as (_engine, (source,)):
            (copy,) = await _copies(source, 1)
            assert (await copy.run("print(1)")).stdout == "1\n"
            await copy.close()

    asyncio.run(check())


def test_without_a_place_for_snapshots_they_are_refused_and_live_on(tmp_path: Path) -> None:
    """The control, before and after: one engine of the two had none."""

    async def check(said: str, *, stores: bool) -> None:
        async with _taken_over(tmp_path, stores=stores) as (_engine, (source,)):
            for copy in (source.fork, source.snapshot):
                with pytest.raises(Conflict, match="an earlier server started") as refused:
                    await copy()
                assert "snapshots_dir" in str(refused.value.remedy)
            assert await _said(source) == said

    run_left(tmp_path, "unkept")
    asyncio.run(check("42 1\n", stores=True))
    run_left(tmp_path, "1")
    asyncio.run(check("42 1\n", stores=False))


def test_copies_of_a_lineage_share_one_base_and_leave_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with _taken_over(tmp_path) as (made, sources):
            for number, source in enumerate(sources):
                await source.snapshot(f"later{number}")
                for copy in await _copies(source, 1):
                    assert await _said(copy) == "42 1\n"
                    await copy.close()
            found = [each.stat() for each in (tmp_path / "snapshots").glob("*/base")]
            assert len(found) == 1 + len(sources)
            assert len({each.st_ino for each in found}) == 1
            assert made.copies_room.taken_mb(BASES) == -(-found[0].st_size >> 20)
            for snapshot in made.copies.snapshots(""):
                made.copies.delete(snapshot.id, "")
            await made._pool.wait_buried()
            jail = await made.runtime(name="jail")
            assert isinstance(jail, JailRuntime)
            assert not jail.copier._stored.names
            assert made.copies_room.used_bytes == 0

    run_left(tmp_path, "2", "before")
    asyncio.run(check())
