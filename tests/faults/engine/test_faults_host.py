"""FI-37: the host changes while an engine runs: its next start refuses, or says what is weaker.

For real, in a mount or user namespace of a child's own: the kernel answers there as on such a
host. The control in each: the same engine ran a program before the change.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from kit.faults.entries import embedded

_CHANGE = """
from pathlib import Path
from cellwall.linux.syscalls import mounts, process

async def main():
    engine = bare()
    say("before", await tried(engine.run("print(1)", demand_hard=hard)))
    change()
    say("after", [await tried(engine.run("print(2)", demand_hard=hard)) for _ in range(4)])
    await engine.wait_settled()
    say("live", engine.statistics().runtimes["jail"].live)
    with contextlib.suppress(CellwallError):
        await engine.aclose()

hard = True
process.unshare(process.CLONE_NEWNS)
mounts.mount("none", "/", None, mounts.MS_REC | mounts.MS_PRIVATE, None)
points = [line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup" in line]
"""
_READ_ONLY = """
def change():
    for point in points:
        # On top of itself: the engine has files open for writing in the one below.
        mounts.mount(point, point, None, mounts.MS_BIND, None)
        flags = mounts.MS_REMOUNT | mounts.MS_BIND | mounts.MS_RDONLY
        mounts.mount("none", point, None, flags, None)
"""
_COVERED = """
def change():
    for point in points:
        mounts.mount("tmpfs", point, "tmpfs", 0, None)
"""
_HANDLER = """
import tempfile
from cellwall.jail.inspect import host_facts

pattern = tempfile.NamedTemporaryFile("w+")

def show(text):
    pattern.seek(0)
    pattern.truncate()
    pattern.write(text)
    pattern.flush()

def change():
    show("|/usr/bin/handler %p")

host_facts._CORE_PATTERN = pattern.name
show("core")
"""
_NO_NAMESPACES = """
hard = False

def change():
    Path("/proc/sys/user/max_user_namespaces").write_text("0")

uid, gid = os.geteuid(), os.getegid()
process.unshare(process.CLONE_NEWUSER | process.CLONE_NEWNS)
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
"""
_GO = "\nasyncio.run(main())\n"


def _refusals(said: dict[str, Any]) -> list[str]:
    assert said["before"] == {"stdout": "1\n"}
    assert said["live"] == 0
    return [each["error"] for each in said["after"] if "error" in each]


@pytest.mark.root
@pytest.mark.attack
@pytest.mark.parametrize(
    "change", [pytest.param(_READ_ONLY, id="read-only"), pytest.param(_COVERED, id="covered")]
)
def test_cgroups_that_go_away_are_a_refusal(change: str) -> None:
    """Not at once, maybe: directories made before the change still hold what they held."""
    refused = _refusals(embedded(_CHANGE + change + _GO))
    assert refused
    assert all("cgroup" in words for words in refused), refused


@pytest.mark.root
@pytest.mark.attack
def test_handler_of_crashes_that_comes_later_is_a_refusal_where_nothing_stops_it() -> None:
    refused = _refusals(
        embedded(
            _CHANGE + _HANDLER + _GO,
            before=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        )
    )
    assert len(refused) == 4
    assert all("RLIMIT_CORE" in words and "ulimit -Hc" in words for words in refused)


@pytest.mark.root
@pytest.mark.attack
def test_handler_of_crashes_that_comes_later_is_stopped_by_the_limit_where_there_is_one() -> None:
    """The control: the same host, and a hard limit that leaves us 1."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("our own hard limit is 0")
    assert _refusals(embedded(_CHANGE + _HANDLER + _GO)) == []


@pytest.mark.attack
@pytest.mark.root
def test_user_namespaces_that_are_switched_off_are_a_refusal() -> None:
    refused = _refusals(embedded(_CHANGE + _NO_NAMESPACES + _GO, environ=_readable()))
    assert len(refused) == 4
    assert all("clone" in words or "namespace" in words for words in refused), refused


def _readable() -> dict[str, str]:
    """As root of a namespace that maps root alone: the state directory is ours already."""
    state = os.environ.get("CELLWALL_STATE_DIR")
    return {"CELLWALL_STATE_DIR": state} if state and Path(state).exists() else {}
