"""Programs that change files faster, deeper or odder than a watcher likes."""

from __future__ import annotations

import asyncio

import pytest

from cellwall import AsyncSandbox, Verdict
from kit.arena import Arena, fresh_peak_kib, peak_kib

pytestmark = pytest.mark.attack

_HOST_MAY_GROW_KIB = 8 * 1024
_CHURN = """
import os
for n in range({rounds}):
    os.close(os.open("churn", os.O_CREAT)); os.unlink("churn")
os.close(os.open("end", os.O_CREAT))
"""


async def _kinds_until_end(sandbox: AsyncSandbox, code: str, *, reads_meanwhile: bool) -> list[str]:
    kinds: list[str] = []
    async with sandbox.files.watch() as watch:
        running = asyncio.ensure_future(sandbox.run(code))
        if not reads_meanwhile:
            assert (await running).verdict is Verdict.OK
        while True:
            change = await asyncio.wait_for(anext(watch), 20)
            kinds.append(change.kind)
            if change.path == "end" or change.kind == "overflow":
                break
        assert (await running).verdict is Verdict.OK
    return kinds


def test_flood_of_changes_costs_the_host_a_window_and_is_told(arena: Arena) -> None:
    async def attack() -> list[str]:
        async with arena.sandbox() as sandbox:
            flood = _CHURN.format(rounds=60_000)
            kinds = await _kinds_until_end(sandbox, flood, reads_meanwhile=False)
            await sandbox.files.write("after", "")
            assert (await sandbox.run("6 * 7")).text == "42"
            return kinds

    before = fresh_peak_kib()
    with arena.leaving_nothing():
        kinds = arena.do(attack())
    assert kinds[-1] == "overflow"
    assert kinds.count("created") < 60_000
    assert peak_kib() - before <= _HOST_MAY_GROW_KIB


def test_changes_that_are_read_in_time_are_all_told(arena: Arena) -> None:
    async def twin() -> list[str]:
        async with arena.sandbox() as sandbox:
            few = _CHURN.format(rounds=3000)
            return await _kinds_until_end(sandbox, few, reads_meanwhile=True)

    kinds = arena.do(twin())
    assert "overflow" not in kinds
    assert (kinds.count("created"), kinds.count("removed")) == (3001, 3000)


_ODD = """
import os
os.makedirs("a/" * 100)
os.symlink("/", "everything")
os.mkfifo("fifo")
for name in (b"\\xff", b"new\\nline", b"\\x1b[2J", b"n" * 255):
    os.close(os.open(name, os.O_CREAT))
os.mkdir("closed", 0)
os.close(os.open("end", os.O_CREAT))
"""


def test_odd_trees_and_names_leave_the_watch_working(arena: Arena) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            assert (await sandbox.run(_ODD)).ok
            async with sandbox.files.watch() as watch:  # lists what is there already
                await sandbox.run("import shutil; shutil.rmtree('a'); open('new', 'w')")
                paths = []
                while (change := await asyncio.wait_for(anext(watch), 20)).path != "new":
                    paths.append(change.path)
                assert "a" in paths
        async with arena.sandbox() as sandbox, sandbox.files.watch() as watch:
            assert (await sandbox.run(_ODD)).ok  # and what is made meanwhile
            names = set()
            while (change := await asyncio.wait_for(anext(watch), 20)).path != "end":
                names.add(change.path)
            assert {"everything", "fifo", "new\nline", "\x1b[2J", "n" * 255, "closed"} <= names

    with arena.leaving_nothing():
        arena.do(attack())
