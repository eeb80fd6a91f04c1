"""Copies of whole gVisor sandboxes that end early: with a dead engine, a dead part, no tools.

Real processes of a real `runsc`; the witnesses are the host's listings of processes, cgroups and
files. CELLWALL_TEST_TREES says how many copies the count of leftovers makes (CI: 6 of the 100).
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from cellwall.engine.templates.store import state_dir
from cellwall.linux import owner_label
from cellwall.model.errors import CapacityError, CellwallError, HostUnsupported
from cellwall.runtimes.gvisor import binary as gvisor_binary
from cellwall.runtimes.gvisor.trees import saved_area, writing
from kit.arena import MADE_BY_A_TEST, Arena, descendants
from kit.jail.control_groups import control_groups
from kit.places import ROOT, TESTS

if TYPE_CHECKING:
    from cellwall.runtimes.gvisor.runtime import GvisorRuntime

TREES = int(os.environ.get("CELLWALL_TEST_TREES", "6"))
pytestmark = [pytest.mark.attack, pytest.mark.root, pytest.mark.timeout(240 + 10 * TREES)]

_ENGINE = """
import asyncio
from cellwall import Engine, EngineSettings
async def main():
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    source = await engine.create_sandbox(runtime="gvisor")
    await source.run("x = 1; big = bytearray(b'x' * (8 << 20))")
    print("ready", flush=True)
    while True:
        for each in await source.fork(2):
            await each.sandbox.close()
asyncio.run(main())
"""


def _images(pid: int) -> list[str]:
    """What a process has written down and not removed, by its owner labels."""
    folder = state_dir() / "gvisor" / "trees"
    return [path.name for path in folder.glob(f"*-{pid}-*")]


def test_many_copies_leave_nothing(gvisor_arena: Arena) -> None:
    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            await source.run("x = 1")
            for _ in range(TREES // 2):
                for each in await source.fork(2):
                    assert (await each.sandbox.run("print(x)")).stdout == "1\n"
                    await each.sandbox.close()

    with gvisor_arena.leaving_nothing():
        gvisor_arena.do(forked())
    assert _images(os.getpid()) == []


@pytest.mark.parametrize("seed", range(4))
def test_killed_engine_leaves_nothing_after_the_next_sweep(gvisor_arena: Arena, seed: int) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{TESTS}"}
    words = [sys.executable, "-c", _ENGINE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(random.Random(seed).uniform(0, 4))
            below = descendants(child.pid)
            assert below  # the control: there is something to leave
            assert control_groups(child.pid)
        finally:
            child.kill()
    gvisor_arena.do(gvisor_arena.engine.sweep())
    deadline = time.monotonic() + 10
    while (left := _alive(below)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == set()
    assert control_groups(child.pid) == set()
    gvisor_arena.do(gvisor_arena.engine.sweep())
    assert _images(child.pid) == []


def _alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}/exe").is_symlink() and _state(pid) != "Z"}


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "Z"
    return text[text.rindex(")") + 2]


@pytest.mark.parametrize("seed", range(4))
def test_part_that_is_killed_in_a_fork_is_told(gvisor_arena: Arena, seed: int) -> None:
    """Any process of the source, at any step: the fork ends with a typed error, or was done."""
    chance = random.Random(seed)

    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            await source.run("x = 1")
            forking = asyncio.ensure_future(source.fork())
            await asyncio.sleep(chance.uniform(0, 2))
            keeper: int = source.live.runtime_sandbox.pid  # type: ignore[attr-defined]
            parts = sorted(descendants(keeper) | {keeper})
            os.kill(chance.choice(parts), signal.SIGKILL)
            (end,) = await asyncio.gather(forking, return_exceptions=True)
            if isinstance(end, BaseException):
                assert isinstance(end, CellwallError), repr(end)
                return
            for each in end:
                if each.made is not None:
                    assert (await each.made.run("print(x)")).stdout == "1\n"
                    await each.made.close()
                else:
                    assert isinstance(each.error, CellwallError)

    with gvisor_arena.leaving_nothing():
        gvisor_arena.do(forked())
    assert _images(os.getpid()) == []


def test_host_without_a_tool_refuses_and_says_which(
    gvisor_arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            await source.run("x = 1")
            with pytest.raises(HostUnsupported, match="copies need tar") as caught:
                await source.fork()
            assert caught.value.remedy == "apt-get install tar"
            assert (await source.run("print(x)")).stdout == "1\n"

    monkeypatch.setattr(saved_area, "TAR", "/nowhere/tar")
    gvisor_arena.do(forked())


def test_full_disk_is_refused_before_anything_is_stopped(
    gvisor_arena: Arena, tmp_path: Path
) -> None:
    """A `runsc` that ends what it writes down would lose the source."""
    copies = gvisor_arena.engine.copies
    host = copies._host
    options = "size=4m,mode=700"
    subprocess.run(
        ["/usr/bin/mount", "-t", "tmpfs", "-o", options, MADE_BY_A_TEST, str(tmp_path)], check=True
    )

    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            await source.run("x = 1")
            copies._host = host._replace(folder=tmp_path)
            with pytest.raises(CapacityError, match=r"no room for \d+ MiB"):
                await source.fork()
            copies._host = host
            assert (await source.run("print(x)")).stdout == "1\n"
            (fork,) = await source.fork()  # the control
            await fork.sandbox.close()

    try:
        gvisor_arena.do(forked())
    finally:
        copies._host = host
        subprocess.run(["/usr/bin/umount", str(tmp_path)], check=True)


def test_binary_that_ends_what_it_should_leave_running_is_refused(gvisor_arena: Arena) -> None:
    """Debian 12's has the flag: under another name of its version only the trial can tell."""
    binary = gvisor_binary.inspect(gvisor_binary.find())
    if gvisor_binary.leaves_running(binary):
        pytest.skip("this runsc leaves running what it writes down")

    async def forked() -> None:
        async with gvisor_arena.sandbox() as source:
            runtime = cast("GvisorRuntime", gvisor_arena.engine._runtimes.get("gvisor"))
            chosen = await runtime.choose()
            unknown = replace(chosen.binary, version="unknown", digest=secrets.token_hex(32))
            runtime._chosen = chosen._replace(binary=unknown)
            try:
                for _ in range(2):  # the second time from memory
                    with pytest.raises(HostUnsupported, match="copies nothing here: ") as caught:
                        await runtime._abilities()
                    assert caught.value.remedy
            finally:
                runtime._chosen = chosen
            (fork,) = await source.fork()  # the control: as one that ends what it writes down
            await fork.sandbox.close()

    with gvisor_arena.leaving_nothing():
        gvisor_arena.do(forked())


def test_sweep_takes_only_what_dead_processes_left(tmp_path: Path) -> None:
    with subprocess.Popen(["/usr/bin/true"]) as dead:
        dead.wait()
    ours = owner_label.new_label()
    theirs = ours.replace(f"-{os.getpid()}-", f"-{dead.pid}-")
    assert ours != theirs
    for name in (ours, theirs):
        (tmp_path / name).mkdir()
        (tmp_path / name / saved_area.IMAGE[0]).write_bytes(b"secret")
    assert writing.sweep(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == [ours]
