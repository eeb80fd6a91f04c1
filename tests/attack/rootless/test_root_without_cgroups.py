"""Root on a host whose cgroups cannot be used: memory is watched from outside, and said to be.

Simulated for real in a mount namespace of a child's own: hierarchies read-only, or covered by a
plain tmpfs that takes every write and limits nothing. Control: the same child with neither.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from typing import Any

import pytest

from kit.unprivileged import SOURCES

pytestmark = [pytest.mark.root, pytest.mark.attack]

_HOST = """
import json, os, sys
from pathlib import Path
from cellwall.linux.syscalls import mounts, process

case, nonce = sys.argv[1:]
process.unshare(process.CLONE_NEWNS)
mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
points = [line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup" in line]
if case == "read-only":
    for point in points:
        flags = mounts.MS_REMOUNT | mounts.MS_BIND | mounts.MS_RDONLY
        mounts.mount("none", point, None, flags, None)
if case == "impostor":
    mounts.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, None)
    for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.controllers"):
        Path("/sys/fs/cgroup", name).write_text("")
    Path("/sys/fs/cgroup/cgroup.controllers").write_text("memory pids cpu")

import cellwall

def say(name, code, **options):
    try:
        done = cellwall.run(f"print({nonce!r}, flush=True)\\n" + code, **options)
        hardness = done.outcome.isolation.hardness
        said = {"stdout": done.stdout, "verdict": done.verdict.value, "hardness": hardness}
    except cellwall.HostUnsupported as error:
        said = {"error": str(error)}
    print(json.dumps([name, said]), flush=True)

say("plain", "print(45)")
hog = "kept = []\\nwhile True:\\n    kept.append(b'x' * (1 << 20))\\n"
say("hog", hog, limits={"memory_mb": 128}, timeout=10)
def in_a_session():
    with cellwall.Sandbox(limits={"memory_mb": 128, "processes": 40}) as sandbox:
        sandbox.files.write("kept.txt", "kept")
        sandbox.contexts.create("other")
        sandbox.run("theirs = 45", context="other")
        server = sandbox.commands.start(["sleep", "600"])
        ends = [sandbox.run(hog, timeout=10)]
        ends += [sandbox.run("print(45)")]
        ends += [sandbox.commands.run(["python3", "-c", hog], timeout=10)]
        stays = (
            sandbox.run("theirs", context="other").text,
            sandbox.files.read("kept.txt"),
            server.is_running,
        )
        said = {"ends": [end.outcome.verdict.value for end in ends], "stays": stays}
        print(json.dumps(["session", {**said, "notes": " ".join(ends[1].outcome.notes)}]))

in_a_session()
say("demanding", "print(45)", demand_hard=True)
# The real hierarchies belong to everybody: directories come and go while one lists them.
impostors = [str(path) for path in Path("/sys/fs/cgroup").rglob("*")] if case == "impostor" else []
print(json.dumps(["impostors", sorted(impostors)]))
"""


def _host(case: str) -> dict[str, Any]:
    nonce = secrets.token_hex(8)
    done = subprocess.run(
        [sys.executable, "-c", _HOST, case, nonce],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = dict(map(json.loads, done.stdout.splitlines()))
    for name in ("plain", "hog"):
        assert nonce in json.dumps(said[name])
    return said


def _soft(said: dict[str, Any]) -> set[str]:
    return {name for name, how in said["hardness"].items() if how == "soft"}


@pytest.mark.parametrize("case", ["read-only", "impostor"])
def test_memory_hog_without_cgroups_is_killed_by_the_watchdog(case: str) -> None:
    said = _host(case)
    assert _soft(said["plain"]) == {"memory_mb", "cpu_s"}
    assert said["hog"]["verdict"] == "memory"
    assert "cpu_s, memory_mb can only be held softly" in said["demanding"]["error"]
    assert [path for path in said["impostors"] if "cellwall" in path] == []


@pytest.mark.parametrize("case", ["read-only", "control"])
def test_memory_hog_in_a_session_ends_alone(case: str) -> None:
    """Ended by the watchdog; the control, with cgroups, by the kernel."""
    said = _host(case)["session"]
    assert said["ends"] == ["memory", "ok", "memory"]
    assert "this ran in a new one" in said["notes"]
    assert said["stays"] == ["45", "kept", True]


def test_memory_hog_with_cgroups_is_killed_by_the_kernel() -> None:
    """The control: same child, nothing taken away."""
    said = _host("control")
    assert _soft(said["plain"]) == set()
    assert said["hog"]["verdict"] == "memory"
    assert said["demanding"]["verdict"] == "ok"
