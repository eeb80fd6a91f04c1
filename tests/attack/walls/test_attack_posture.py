"""D12, N15, F07: the kernel's report of every thread, against an expectation computed here.

Read from the host's /proc by this file's own parser, not by `jail.inspect.posture`: the two must
come to the same by different ways. The invariant: a field the kernel does not report fails.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest

from cellwall import AsyncSandbox
from cellwall.model.limits import Limits
from cellwall.runtimes.jail.sandbox import JailSandbox
from kit.arena import Arena, descendants

pytestmark = [pytest.mark.attack, pytest.mark.root]
MIB = 1024 * 1024
LIMITS = Limits(memory_mb=128, processes=30, open_files=64, file_mb=8)
RLIMITS = {
    "Max core file size": 1,
    "Max file size": 8 * MIB,
    "Max open files": 64,
    "Max locked memory": 0,
    "Max msgqueue size": 0,
    "Max nice priority": 0,
    "Max realtime priority": 0,
    "Max pending signals": 1024,
    "Max processes": 124,  # twice 30 and 64: the pids cgroup is reached first
}
CONFINED = {
    "CapInh": "0" * 16,
    "CapPrm": "0" * 16,
    "CapEff": "0" * 16,
    "CapBnd": "0" * 16,
    "CapAmb": "0" * 16,
    "NoNewPrivs": "1",
    "Seccomp": "2",
    "Groups": "",
    "TracerPid": "0",
}
NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")

START_FOUR = """
import subprocess, sys, threading
gate = threading.Event()
for _ in range(4):
    threading.Thread(target=gate.wait, daemon=True).start()
child = subprocess.Popen(["sleep", "60"])
words = ["sh", "-c", "setsid sleep 60 & echo up; wait"]
grandchild = subprocess.Popen(words, stdout=subprocess.PIPE)
grandchild.stdout.readline()
print(threading.active_count())
"""


def _in_sandbox(sandbox: AsyncSandbox) -> set[int]:
    """Init, and all that the host's kernel lists below it."""
    jail = sandbox.live.runtime_sandbox
    assert isinstance(jail, JailSandbox)
    return {jail.pid, *descendants(jail.pid)}


def _threads(processes: set[int]) -> list[Path]:
    return [task for pid in processes for task in Path(f"/proc/{pid}/task").iterdir()]


def _status(task: Path) -> dict[str, str]:
    lines = (task / "status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def _is_used(uid: str) -> bool:
    """Whether any process of the host has that id."""
    owners = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            owners.add(str(process.stat().st_uid))
    return uid in owners


def _rlimits(task: Path) -> dict[str, tuple[str, str]]:
    rows = re.findall(r"(?m)^(Max .*?) {2,}(\S+) +(\S+)", (task / "limits").read_text())
    return {name.strip(): (soft, hard) for name, soft, hard in rows}


def _check(task: Path, uid: str) -> dict[str, str]:
    """Hold one thread to the expectation; return its namespaces."""
    status = _status(task)
    assert {name: status[name] for name in CONFINED} == CONFINED, task
    assert status["Seccomp_filters"] == "1"
    assert (status["Uid"].split(), status["Gid"].split()) == ([uid] * 4, [uid] * 4)
    for kind in ("uid_map", "gid_map"):
        lines = [tuple(line.split()) for line in (task / kind).read_text().splitlines()]
        assert lines[0] == ("1000", uid, "1")
        assert [(inside, count) for inside, _, count in lines[1:]] in ([], [("0", "1")])
        assert not any(_is_used(outside) for _, outside, _ in lines[1:])
    found = _rlimits(task)
    assert {name: found[name] for name in RLIMITS} == {
        name: (str(value), str(value)) for name, value in RLIMITS.items()
    }
    return {name: os.readlink(task / "ns" / name) for name in NAMESPACES}


def _check_all(processes: set[int]) -> None:
    tasks = _threads(processes)
    owners = {(task / "status").stat().st_uid for task in tasks} | {
        int(_status(task)["Uid"].split()[0]) for task in tasks
    }
    uid = str(max(owners))
    assert int(uid) >= 100_000, "an id of the host's own range"
    seen = [_check(task, uid) for task in tasks]
    assert all(each == seen[0] for each in seen), "one sandbox, one set of namespaces"
    for name in NAMESPACES:
        assert seen[0][name] != os.readlink(f"/proc/self/ns/{name}")
    compared = 0
    for pid in descendants(os.getpid()) - processes:
        with contextlib.suppress(FileNotFoundError):  # it has ended, and shares nothing any more
            others = {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES}
            for name in NAMESPACES:
                assert seen[0][name] != others[name], f"shared with {pid}"
            compared += 1
    assert compared, "no process beside the sandbox"


def _mounts(pid: int) -> dict[str, set[str]]:
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return {line.split()[4]: set(line.split()[5].split(",")) for line in lines}


WORK_AREA = {"/", "/dev/shm", "/dev/pts"}


def _check_mounts(pid: int) -> None:
    for point, options in _mounts(pid).items():
        assert "nosuid" in options, point
        assert "ro" in options or point in WORK_AREA, point
        assert "nodev" in options or point.startswith("/dev/"), point
        assert "noexec" in options or not point.startswith(("/proc", "/sys", "/dev/pts")), point


def test_posture_of_every_thread_is_the_computed_one(arena: Arena) -> None:
    """D12: as started, and again after the program has four threads and children more."""

    async def watched() -> None:
        async with arena.sandbox(limits=_changes()) as sandbox:
            before = _in_sandbox(sandbox)
            assert len(before) == 2  # init and the context
            _check_all(before)
            _check_mounts(min(before))
            threads = len(_threads(before))
            execution = await sandbox.run(START_FOUR)
            assert execution.stdout == "5\n", execution
            after = _in_sandbox(sandbox)
            assert len(after) == 5
            assert len(_threads(after)) >= threads + 7
            _check_all(after)
            for pid in after:
                _check_mounts(pid)

    arena.do(watched())


def _changes() -> dict[str, int]:
    return {
        "memory_mb": LIMITS.memory_mb,
        "processes": LIMITS.processes,
        "open_files": LIMITS.open_files,
        "file_mb": LIMITS.file_mb,
    }


def test_posture_is_complete_before_caller_code_is_read(arena: Arena) -> None:
    """N15: a sandbox that nobody gave code to yet is as confined as one that runs it."""

    async def idle() -> None:
        async with arena.sandbox(limits=_changes()) as sandbox:
            processes = _in_sandbox(sandbox)
            assert len(processes) == 2
            _check_all(processes)

    arena.do(idle())


def test_unconfined_process_is_noticed() -> None:
    """The control: the same check of a process nobody confined fails."""
    with pytest.raises(AssertionError):
        _check(Path("/proc/self"), str(os.geteuid()))
    with pytest.raises(AssertionError):
        _check_mounts(os.getpid())


THREADS = """
import ctypes, json, threading
libc = ctypes.CDLL(None, use_errno=True)
found = []
def attack():
    with open("/proc/thread-self/status") as file:
        mode = [line.split()[1] for line in file if line.startswith("Seccomp:")][0]
    result = libc.unshare(1 << 26)
    found.append([mode, result, ctypes.get_errno()])
attack()
threads = [threading.Thread(target=attack) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(); print(json.dumps(found))
"""


def test_every_thread_has_the_filter(arena: Arena) -> None:
    """F07: none is older than the filter, and none started later escapes it."""
    found = arena.run(THREADS).stdout.split("\n\n", 1)[1]
    assert found.strip() == repr([["2", -1, 1]] * 9).replace("'", '"')
