"""Attacks on checkpoints and rollbacks: code inside that wants a rollback to fail in silence.

Each has the control beside it: the same attack where what holds it back is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.engine.history.history import History
from cellwall.engine.templates.store import TemplateStore, state_dir
from cellwall.model.errors import Conflict, FileError

DAEMON = """
import os
context = os.getpid()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(0); os.close(1); os.close(2)
        {body}
    os._exit(0)
os.wait()
"""
WRITES = """
        n = 0
        while True:
            n += 1
            with open("kept", "w") as file: file.write("forged %d" % n)
"""
KILLS = """
        while True:
            for pid in range(2, 300):
                if pid not in (os.getpid(), context):
                    try: os.kill(pid, 9)
                    except OSError: pass
"""


@contextlib.asynccontextmanager
async def _sandbox(place: Path, **options: Any) -> AsyncIterator[AsyncSandbox]:
    settings = EngineSettings(pool_min=0, pool_max=0)
    engine = Engine(place, settings, templates=TemplateStore(state_dir()))
    try:
        async with await engine.create_sandbox(runtime="jail", **options) as sandbox:
            yield sandbox
    finally:
        await engine.aclose()


@contextlib.asynccontextmanager
async def _nobody_stops(_history: History) -> AsyncIterator[None]:
    yield


async def _attacked(place: Path, body: str) -> str:
    """Return what is in the file after a rollback under attack, or how that was refused."""
    async with _sandbox(place) as sandbox:
        await sandbox.files.write("kept", "true")
        for number in range(50):
            await sandbox.files.write(f"more/{number}", os.urandom(10_000))
        made = await sandbox.files.checkpoint()
        await sandbox.files.remove("more", recursive=True)
        await sandbox.run(DAEMON.format(body=body))
        # Whatever comes is undone by the rollback; what it left runs on.
        await asyncio.sleep(0.3)
        try:
            await sandbox.files.rollback(made.id)
        except Conflict as error:
            return str(error)
        return "restored"


def test_process_that_writes_on_cannot_spoil_a_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asyncio.run(_attacked(tmp_path / "a", WRITES)) == "restored"
    monkeypatch.setattr(History, "_quiet", _nobody_stops)
    # Processor time is shared with what it attacks: one try may be over before it comes to run.
    tries = (asyncio.run(_attacked(tmp_path / str(number), WRITES)) for number in range(10))
    assert any("rollback: incomplete" in said for said in tries)


def test_process_that_kills_all_it_can_cannot_end_a_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asyncio.run(_attacked(tmp_path / "a", KILLS)) == "restored"
    monkeypatch.setattr(History, "_quiet", _nobody_stops)
    tries = (asyncio.run(_attacked(tmp_path / str(number), KILLS)) for number in range(10))
    assert any("was killed" in said for said in tries)


def test_processes_go_on_after_a_rollback(tmp_path: Path) -> None:
    async def whole() -> None:
        async with _sandbox(tmp_path) as sandbox:
            await sandbox.files.write("kept", "true")
            made = await sandbox.files.checkpoint()
            await sandbox.run("x = 7\n" + DAEMON.format(body=WRITES))
            await sandbox.files.rollback(made.id)
            assert (await sandbox.run("print(x)")).stdout == "7\n"
            for _ in range(100):
                await asyncio.sleep(0.05)
                if "forged" in await sandbox.files.read("kept"):
                    return
            raise AssertionError("the process that was stopped does not go on")

    asyncio.run(whole())


def test_full_disk_is_an_incomplete_rollback_that_says_so(tmp_path: Path) -> None:
    async def whole() -> None:
        async with _sandbox(tmp_path, limits={"disk_mb": 32}) as sandbox:
            await sandbox.files.write("big", os.urandom(16 << 20))
            made = await sandbox.files.checkpoint()
            await sandbox.files.remove("big")
            await sandbox.run(
                "f = open('/tmp/fill', 'wb')\n"
                "try:\n while True: f.write(bytes(1 << 16))\nexcept OSError: pass"
            )
            with pytest.raises(FileError, match="rollback: incomplete") as refused:
                await sandbox.files.rollback(made.id)
            assert refused.value.reason == "no_space"
            await sandbox.run("import os; f = None; os.remove('/tmp/fill')")
            await sandbox.files.rollback(made.id)
            assert await sandbox.files.diff() == []

    asyncio.run(whole())


def test_a_crowd_of_small_files_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async def whole() -> None:
        async with _sandbox(tmp_path, limits={"disk_mb": 512, "inodes": 60_000}) as sandbox:
            made = await sandbox.files.checkpoint()
            done = await sandbox.run(
                "import os\nfor n in range(51_000):\n os.close(os.open(str(n), os.O_CREAT))"
            )
            assert done.outcome.verdict.value == "ok", done
            with pytest.raises(FileError, match="more than 50000 files"):
                await sandbox.files.checkpoint()
            assert [each.id for each in await sandbox.files.checkpoints()] == [made.id]
            assert (await sandbox.run("print(1)")).stdout == "1\n"

    asyncio.run(whole())


def test_code_inside_finds_nothing_of_a_checkpoint(tmp_path: Path) -> None:
    """The control: the words are found where they lie, in a file of the work area."""
    search = (
        "import os, subprocess\n"
        "print(subprocess.run(['grep', '-rl', 'w0rd-to-find', '/home', '/tmp', '/dev/shm'],"
        " capture_output=True, text=True).stdout)"
    )

    async def whole() -> None:
        async with _sandbox(tmp_path) as sandbox:
            await sandbox.files.write("mine", "w0rd" + "-to-find")
            made = await sandbox.files.checkpoint()
            assert "/home/user/mine" in (await sandbox.run(search)).stdout
            await sandbox.files.remove("mine")
            assert "mine" not in (await sandbox.run(search)).stdout
            await sandbox.files.rollback(made.id)
            assert await sandbox.files.read("mine") == "w0rd-to-find"

    asyncio.run(whole())
