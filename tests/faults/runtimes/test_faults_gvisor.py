"""FI-09, 10, 29, 31, 38 on gVisor: parts of it die, its owner dies, it is missing or broken.

Real processes of a real `runsc`, found and killed from outside; the witnesses are the host's
listings of processes and cgroups.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings, Execution, Verdict
from cellwall.linux import seccomp
from cellwall.linux.cgroups import hierarchies
from cellwall.model.errors import CellwallError, HostUnsupported
from cellwall.runtimes.gvisor import oci_bundle, trace_listener
from cellwall.runtimes.gvisor import runtime as gvisor
from cellwall.testing.bare import BareTemplates
from kit.arena import Arena, descendants
from kit.faults.entries import running
from kit.jail.control_groups import control_groups

pytestmark = [pytest.mark.attack, pytest.mark.root]
_SOON_S = 2.0
_GONE_S = 5.0


@pytest.fixture(autouse=True)
def _settled(gvisor_arena: Arena) -> None:
    gvisor_arena.settle()


def _program(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return os.path.basename(words[0].decode(errors="replace"))


def _part(sandbox: AsyncSandbox, name: str) -> int:
    keeper: int = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]
    if name == "keeper":
        return keeper
    (found,) = [pid for pid in descendants(keeper) if _program(pid) == name]
    return found


def _until(holds: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not so within {within_s:g} s"
        time.sleep(0.02)


@pytest.mark.parametrize("part", ["keeper", "runsc", "runsc-gofer", "runsc-sandbox"])
def test_part_that_is_killed_ends_the_sandbox_with_a_name(gvisor_arena: Arena, part: str) -> None:
    """FI-09. The file server alone may go unnoticed until a file is opened; then it is an error."""

    async def attack() -> tuple[Execution, float]:
        async with gvisor_arena.sandbox() as neighbour, gvisor_arena.sandbox() as sandbox:
            up = asyncio.Event()
            code = "print('up', flush=True)\nimport time; time.sleep(30)"
            cell = sandbox.run(code, timeout=40, on_event=lambda _: up.set())
            task = asyncio.ensure_future(cell)
            await up.wait()
            began = time.monotonic()
            name = os.path.basename(_binary()) if part == "runsc" else part
            os.kill(_part(sandbox, name), signal.SIGKILL)
            ended = await task
            took_s = time.monotonic() - began
            assert (await neighbour.run("6 * 7")).text == "42"
            return ended, took_s

    with gvisor_arena.leaving_nothing():
        ended, took_s = gvisor_arena.do(attack())
    assert ended.stdout == "up\n"
    assert ended.verdict is Verdict.SANDBOX_ERROR, ended
    assert took_s < _SOON_S


def test_table_of_descriptors_does_not_grow_in_a_start(gvisor_arena: Arena) -> None:
    """The kernel makes a process with threads wait for that, 10 ms and more."""

    async def sizes() -> dict[str, int]:
        async with gvisor_arena.sandbox() as sandbox:
            names = (os.path.basename(_binary()), "runsc-gofer", "runsc-sandbox")
            return {name: _table_size(_part(sandbox, name)) for name in names}

    found = gvisor_arena.do(sizes())
    assert len(found) == 3
    assert min(found.values()) >= 512, found


def test_no_part_registers_for_membarrier(gvisor_arena: Arena) -> None:
    """The kernel makes each of its processes wait for that, too. Code inside is told: none."""
    number = seccomp.syscall_numbers(os.uname().machine)["membarrier"]
    asked = gvisor_arena.run(f"import ctypes\nprint(ctypes.CDLL(None).syscall({number}, 0, 0, 0))")
    assert asked.stdout.split()[-1] == "0"


def _table_size(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("FDSize:")[2].split()[0])


def _binary() -> str:
    from cellwall.runtimes.gvisor import binary as gvisor_binary

    return gvisor_binary.find()


def test_start_that_fails_half_way_leaves_nothing(
    gvisor_arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FI-10: `runsc` runs, and what it should start inside is not there."""
    monkeypatch.setattr(oci_bundle, "guest_words", lambda _image: ("/nowhere/python",))
    with (
        gvisor_arena.leaving_nothing(),
        pytest.raises(CellwallError, match="gVisor: start sandbox") as caught,
    ):
        gvisor_arena.run("1")
    assert "/nowhere/python" in (caught.value.remedy or "")


def test_waiting_keeper_that_is_killed_is_not_missed(gvisor_arena: Arena) -> None:
    """FI-10: what is made ahead may be gone when it is wanted."""
    gvisor_arena.run("1")
    pid = gvisor_arena.do(_waiting_keeper(gvisor_arena))
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not _is_alive(pid), _GONE_S)
    assert gvisor_arena.run("print(2)").stdout.endswith("2\n")


async def _waiting_keeper(arena: Arena) -> int:
    """The pid of the one that waits for the next sandbox."""
    runtime: Any = await arena.engine.runtime("kernel", "gvisor")
    async with asyncio.timeout(_GONE_S):
        while runtime._keepers._next is None:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    return int(runtime._keepers._next.pid)


@pytest.mark.usefixtures("gvisor_arena")
def test_waiting_keeper_that_nobody_takes_is_let_go(tmp_path: Path) -> None:
    """It has the idle life of the pool; the next start makes do without it."""
    settings = EngineSettings(pool_min=0, pool_max=0, pool_idle_s=3600.0)
    made = Arena(
        lambda: Engine(tmp_path / "state", settings, templates=BareTemplates(tmp_path / "env")),
        runtime="gvisor",
        isolation="kernel",
    )
    try:
        runtime: Any = made.do(made.engine.runtime("kernel", "gvisor"))
        assert runtime.idle_s == settings.pool_idle_s
        made.run("1")
        pid = made.do(_waiting_keeper(made))
        made.run("1")
        assert made.do(_waiting_keeper(made)) != pid  # that one became a sandbox
        pid = made.do(_left_alone(runtime._keepers))
        assert not _is_alive(pid)
        assert made.run("print(2)").stdout.endswith("2\n")
    finally:
        made.close()


async def _left_alone(keepers: Any) -> int:
    """Give the one that waits no more time than that; its pid, once it has gone."""
    pid = int(keepers._next.pid)
    assert _is_alive(pid)
    keepers._idle_s = 0.05
    keepers.make_ready_soon()
    keepers.settle()
    assert keepers._next.pid == pid
    async with asyncio.timeout(_GONE_S):
        while keepers._next is not None or keepers._leaving:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    return pid


_HOLD = """
async def main():
    engine = bare(runtimes=("gvisor",))
    sandbox = await engine.create_sandbox(runtime="gvisor", isolation="kernel")
    await sandbox.run("x = 1")
    say("pid", sandbox.live.runtime_sandbox.pid)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_nothing_outlives_an_owner_that_is_killed(gvisor_arena: Arena) -> None:
    """FI-29: processes end by the kernel, the next engine's sweep takes the rest."""
    with running(_HOLD) as owner:
        pids = {owner.hear("pid")} | descendants(owner.pid)
        groups = control_groups(owner.pid)
        assert len(pids) > 4
        assert groups
        os.kill(owner.pid, signal.SIGKILL)
        owner.process.wait()
        _until(lambda: not any(_is_alive(pid) for pid in pids), _GONE_S)

    async def sweep() -> None:
        runtime = await gvisor_arena.engine.runtime("kernel", "gvisor")
        await runtime.sweep()

    gvisor_arena.do(sweep())
    assert not [path for path in groups if os.path.isdir(path)]


def _is_alive(pid: int) -> bool:
    """Dead ones that nobody has waited for count as dead: their reaper is pid 1."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def test_sweep_leaves_alone_what_is_not_a_dead_owners(gvisor_arena: Arena, tmp_path: Path) -> None:
    """FI-31: a live neighbour engine, and names that nearly are ours."""
    hierarchy = hierarchies.discover().having("pids")
    assert hierarchy is not None
    foreign = hierarchy.base / "cellwall.not-a-label"
    foreign.mkdir()
    sinks = tmp_path / "sinks"
    sinks.mkdir()
    (sinks / "other.sock").write_text("")
    try:
        with running(_HOLD) as owner:
            keeper = owner.hear("pid")

            async def sweep() -> None:
                runtime = await gvisor_arena.engine.runtime("kernel", "gvisor")
                await runtime.sweep()

            gvisor_arena.do(sweep())
            assert trace_listener.sweep(sinks) == 0
            assert (sinks / "other.sock").exists()
            assert foreign.is_dir()
            assert _is_alive(keeper)
            assert control_groups(owner.pid)
    finally:
        foreign.rmdir()

    def is_gone() -> bool:
        return not _is_alive(keeper)

    _until(is_gone, _GONE_S)


async def _refusal(tmp_path: Path, name: str | None = None) -> HostUnsupported:
    # Without Docker's: a daemon of other tests may have gVisor, too.
    settings = EngineSettings(pool_min=0, pool_max=0, runtimes=("jail", "gvisor"))
    engine = Engine(tmp_path / "state", settings)
    try:
        with pytest.raises(HostUnsupported) as caught:
            await engine.runtime("kernel", name)
        return caught.value
    finally:
        await engine.aclose()


@pytest.mark.parametrize("name", ["gvisor", None], ids=["by-name", "by-level"])
def test_missing_runsc_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """FI-38: never a weaker level; the error says what to install."""
    monkeypatch.setenv("CELLWALL_RUNSC", str(tmp_path / "none"))
    error = asyncio.run(_refusal(tmp_path, name))
    assert "apt-get install runsc" in str(error)


_BROKEN = """#!/bin/sh
case "$*" in
    --version) echo "runsc version broken" ;;
    flags) printf '  -root x\\n  -platform x\\n  -network x\\n  -ignore-cgroups\\n' ;;
    *) {rest} ;;
esac
"""


@pytest.mark.parametrize(
    ("rest", "words"),
    [("echo no way >&2; exit 1", "no way"), ("exec sleep 600", "did not run `true` within")],
    ids=["fails", "hangs"],
)
def test_broken_runsc_is_found_out_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: str, words: str
) -> None:
    """FI-38: a platform that hangs, as kvm on nested virtualisation does, has a time limit."""
    program = tmp_path / "runsc"
    program.write_text(_BROKEN.replace("{rest}", rest))
    program.chmod(0o755)
    monkeypatch.setenv("CELLWALL_RUNSC", str(program))
    monkeypatch.setattr(gvisor, "_TRY_S", 1.0)
    before = descendants(os.getpid())
    error = asyncio.run(_refusal(tmp_path))
    assert words in str(error)
    assert descendants(os.getpid()) <= before


def test_runsc_that_goes_away_is_taken_out_by_name(tmp_path: Path, gvisor_arena: Arena) -> None:
    """FI-38: told when it happens and with every request, until it is there again."""
    del gvisor_arena  # only for what it requires
    program = tmp_path / "runsc"
    program.symlink_to(shutil.which("runsc") or "")
    told: list[str] = []

    async def work() -> None:
        settings = EngineSettings(pool_min=0, pool_max=0, runtimes=("jail", "gvisor"))
        engine = Engine(tmp_path / "state", settings, templates=BareTemplates(tmp_path / "bare"))
        engine.on_taken_out = lambda name, reason: told.append(f"{name}: {reason}")
        try:
            assert (await engine.run("print(1)", isolation="kernel")).stdout == "1\n"
            program.rename(tmp_path / "gone")
            for _ in range(2):
                with pytest.raises(HostUnsupported, match=r"runsc"):
                    await engine.run("print(2)", isolation="kernel")
            assert told == [f"gvisor: gVisor: {program} is gone"]
        finally:
            await engine.aclose()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLWALL_RUNSC", str(program))
        asyncio.run(work())
