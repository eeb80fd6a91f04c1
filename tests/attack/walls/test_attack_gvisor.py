"""gVisor: what the probes reach is its own kernel's, and the limits hold from outside.

The inside has a kernel to itself, so more calls answer than in the jail, and each such case is
listed with the reason why it is none of the host's. The host is the witness: what its kernel says
of the sandbox's processes before and after.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from cellwall import AsyncSandbox, Execution, Verdict
from cellwall.engine.templates.store import state_dir
from kit import controls, docker_daemon
from kit.arena import Arena, descendants

pytestmark = [pytest.mark.attack, pytest.mark.root]

ITS_OWN = {
    "D02": "flags for namespaces that the inside's kernel does not have",
    "D10": "a number the inside's kernel keeps: there is no tracing to allow",
    "D15": "a number the inside's kernel keeps and nobody reads; the host's stays, see below",
    "D16": "its own priority and CPUs in the inside's kernel; the host's stay, see below",
    "E13": "a log the inside's kernel makes up",
    "E15": "families the inside's kernel implements; none leaves it",
    "E16": "the inside's own loopback device",
    "F02": "a 32-bit call into the inside's kernel",
    "H02": "what the first process inside was started with; what that says, see below",
    "H07": "directories of the inside's own /sys; what is in them, see below",
}


def _host_view(sandbox: AsyncSandbox) -> set[tuple[str, str, str, str, str]]:
    """Confinement of all the sandbox's processes, as the host's kernel tells it."""
    keeper = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]  # gVisor's has one
    found = set()
    for pid in descendants(keeper):
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            score = Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii").strip()
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
            space = os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            continue
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        nice = stat[stat.rindex(")") + 2 :].split()[16]
        found.add((lines["CapEff"], lines["Cpus_allowed_list"], score, nice, space))
    return found


def _tried(arena: Arena, probe: str) -> controls.Both:
    with (
        tempfile.TemporaryDirectory(prefix="bait-") as work,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        Path(work).chmod(0o777)
        me = str(os.getpid())
        common = {
            "host_pid": me,
            "hostname": os.uname().nodename,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "port": f"0100007F:{server.getsockname()[1]:04X}",
        }
        # As far as the pids of the inside's kernel go: a call of its takes 25 µs and more.
        inside = {"work": "/tmp", "pid": "1", "pids": "65536", **common}
        outside = {"work": work, "pid": me, **common}
        # Its kernel's own memory counts, which 65,536 pids bring near 128 MiB on some machines.
        limits = {"memory_mb": 256}
        setting = {"inside": inside, "outside": outside}
        return controls.both(arena, probe, setting, limits=limits)


PROBES = ("probe_privilege", "probe_calls", "probe_views")


@pytest.mark.parametrize("probe", PROBES)
def test_what_is_reached_is_the_insides_own(gvisor_arena: Arena, probe: str) -> None:
    tried = _tried(gvisor_arena, probe)
    reached = {case for (case, _), each in tried.inside.items() if each.reached}
    denied = [key for key, each in tried.inside.items() if not each.reached]
    assert reached <= ITS_OWN.keys(), dict.fromkeys(reached - ITS_OWN.keys(), tried.inside)
    assert sum(tried.outside[key].reached for key in denied if key in tried.outside) > 20


_LOOK = """
import os
for name in ("environ", "maps", "auxv"):
    with open("/proc/1/" + name, "rb") as file: print(file.read())
for name in ("block", "class/net", "firmware", "fs/cgroup", "module"):
    for folder, folders, names in os.walk("/sys/" + name): print(folder, folders, names)
print("all seen")
"""


def test_what_can_be_seen_is_nothing_of_the_hosts(
    gvisor_arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H02 and H07: the first process's own, and /sys of the inside's kernel."""
    monkeypatch.setenv("CELLWALL_CANARY", "canary-value")
    said = gvisor_arena.run(_LOOK).stdout
    assert "all seen" in said
    assert "PATH=" in said
    hosts = [*os.listdir("/sys/block"), *os.listdir("/sys/module")]
    assert len(hosts) > 10
    interfaces = {name for name in os.listdir("/sys/class/net") if name != "lo"}
    seen = [f"'{name}'" for name in {*hosts, *interfaces} if f"'{name}'" in said]
    assert seen == []
    for word in ("canary", str(state_dir()), sys.prefix, os.uname().nodename):
        assert word not in said


_MARKER = "written-inside"


def _where_it_lies(keeper: int) -> tuple[bool, bool]:
    """Whether a marker is in the keeper's mount namespace, and whether anywhere on the host."""
    folder = state_dir() / "gvisor"
    root = f"{folder}/place/area/root"
    there = os.path.exists(f"/proc/{keeper}/root{root}/workspace/{_MARKER}")
    found = (names for _, folders, files in os.walk(folder) for names in (folders, files))
    return there, os.path.lexists(root) or any(_MARKER in names for names in found)


def test_what_is_written_lies_in_no_mount_of_the_hosts(gvisor_arena: Arena) -> None:
    """Its keeper's mount namespace has it, which is the control; nothing else on the host does."""

    async def attack() -> None:
        async with gvisor_arena.sandbox() as sandbox:
            made = await sandbox.run(f"import os; os.makedirs('/workspace/{_MARKER}')")
            assert made.ok, made
            keeper = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]  # gVisor's has one
            assert _where_it_lies(keeper) == (True, False)

    before = _mounts()
    gvisor_arena.do(attack())
    assert _mounts() == before


def _mounts() -> list[str]:
    """The host's mounts, without those of other tests' Docker daemons, which come and go."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [each for each in lines if f"/{docker_daemon.FOLDERS}" not in each]


_RISE = """
import os
for path, value in (("/proc/self/oom_score_adj", "-1000"), ("/proc/1/oom_score_adj", "-1000")):
    try: open(path, "w").write(value)
    except OSError as error: print(path, error.errno)
for work in (lambda: os.nice(19), lambda: os.sched_setaffinity(0, {0, 1}),
             lambda: os.unshare(os.CLONE_NEWUSER) if hasattr(os, "unshare") else None):
    try: work()
    except OSError as error: print(error.errno)
print("tried", open("/proc/self/oom_score_adj").read().strip())
"""


def test_the_hosts_view_of_a_sandbox_does_not_change(gvisor_arena: Arena) -> None:
    """D15 and D16 outside: score, priority, CPUs, capabilities and pid namespace stay."""

    async def attack() -> None:
        async with gvisor_arena.sandbox() as sandbox:
            before = _host_view(sandbox)
            said = (await sandbox.run(_RISE)).stdout
            assert "tried" in said, said
            after = _host_view(sandbox)
            assert {row[1:] for row in after} == {row[1:] for row in before}
            assert os.readlink("/proc/self/ns/pid") not in {row[4] for row in after}
            assert {row[2] for row in after} == {"500"}
            assert after <= before, after - before

    gvisor_arena.do(attack())


_HOG = "held = b'\\x01' * (160 << 20)\nprint('REACHED')"
_CHILD = """
import os
if os.fork() == 0:
    held = b"\\x01" * (160 << 20)
    os._exit(0)
os.wait()
print("REACHED its own end")
"""
_WORK_AREA = """
for folder in ("/tmp", "/dev/shm"):
    try:
        with open(folder + "/fill", "wb") as file:
            while True: file.write(bytes(1 << 20))
    except OSError as error:
        print(folder, error.errno, flush=True)
held = b"\\x01" * (256 << 20)
print("REACHED")
"""


@pytest.mark.parametrize("hog", [_HOG, _CHILD], ids=["I01", "I02"])
def test_memory_hog_is_named_though_its_parent_ends_well(gvisor_arena: Arena, hog: str) -> None:
    with gvisor_arena.leaving_nothing():
        ended = gvisor_arena.beside(hog, limits={"memory_mb": 64}, timeout=15)
    assert ended.verdict is Verdict.MEMORY, ended
    reached = gvisor_arena.run(hog, limits={"memory_mb": 512}, timeout=15)
    assert (reached.verdict, "REACHED" in reached.stdout) == (Verdict.OK, True), reached


def test_full_work_area_counts_as_memory(gvisor_arena: Arena) -> None:
    limits = {"memory_mb": 128, "disk_mb": 32}
    ended = gvisor_arena.run(_WORK_AREA, limits=limits, timeout=15)
    assert (ended.verdict, "REACHED" in ended.stdout) == (Verdict.MEMORY, False), ended
    assert "/tmp 28" in ended.stdout  # ENOSPC: the work area's own limit came first


_BOMB = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try: os.fork()
    except OSError: pass
"""


def test_fork_bomb_is_held_and_gone_after_its_time(gvisor_arena: Arena) -> None:
    limits = {"processes": 20, "memory_mb": 512}
    with gvisor_arena.leaving_nothing():
        ended = gvisor_arena.beside(_BOMB, limits=limits, timeout=3)
    assert ended.verdict is Verdict.WALL_TIME, ended


_FORK_AND_SAY = """
import os, time
for _ in range(300):
    try:
        if os.fork() == 0: time.sleep(60)
    except OSError as error:
        print(error.errno, flush=True)
        os._exit(7)
print("REACHED")
"""


def test_refused_process_is_the_reason_of_a_bad_end(gvisor_arena: Arena) -> None:
    limits = {"processes": 10, "memory_mb": 512}
    ended = gvisor_arena.run(_FORK_AND_SAY, limits=limits, timeout=20)
    assert ended.stdout.endswith("\n11\n"), ended
    assert (ended.verdict, ended.exit_code) == (Verdict.PROCESSES, 7)


async def _gone_s(sandbox: AsyncSandbox) -> float:
    keeper = sandbox.live.runtime_sandbox.pid  # type: ignore[attr-defined]  # gVisor's has one
    tree = {keeper, *descendants(keeper)}
    began = time.monotonic()
    await sandbox.close()
    while tree & descendants(os.getpid()):  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def test_a_busy_tree_is_dead_two_seconds_after_the_word(gvisor_arena: Arena) -> None:
    async def attack() -> tuple[float, Execution]:
        async with gvisor_arena.sandbox() as sandbox:
            up = asyncio.Event()

            def on_event(_event: Any) -> None:
                up.set()

            code = "print('up', flush=True)\n" + _BOMB
            running = asyncio.ensure_future(sandbox.run(code, timeout=30, on_event=on_event))
            await up.wait()
            gone_s = await _gone_s(sandbox)
            return gone_s, await running

    gone_s, ended = gvisor_arena.do(attack())
    assert ended.verdict is Verdict.CANCELLED
    assert gone_s < 2
