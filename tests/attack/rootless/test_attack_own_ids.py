"""What the kernel counts for a user, where an ordinary user's sandboxes have ids of their own.

One sandbox takes all it can of two such counts, descriptors on their way and pages of pipes; its
neighbour must not see it. Control: the same user without a range, whose sandboxes all have its own
id: there the neighbour has nothing left of either. Witness: the host's /proc, which says as whom
both run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Require
from kit.attack.delegated import are_possible, delegated
from kit.attack.ranged import COUNT, FIRST, RangedUser, why_not

pytestmark = [pytest.mark.attack, pytest.mark.root]

_EMBED = """
import asyncio, json
from cellwall import Engine, EngineSettings

TAKE_ALL = '''
import os, signal, socket
kept = []
try:
    while True:
        kept.append(socket.socketpair())
        socket.send_fds(kept[-1][0], [b"x"], [0] * 250)
except OSError:
    pass
stands_r, stands_w = os.pipe()
for _ in range(16):
    if os.fork() == 0:
        held = [os.pipe() for _ in range(110)]
        os.write(stands_w, b".")
        signal.pause()
for _ in range(16):
    os.read(stands_r, 1)
'''
LOOK = '''
import fcntl, os, socket
ours, theirs = socket.socketpair()
try:
    socket.send_fds(ours, [b"x"], [0])
    print("sent", end=" ")
except OSError as error:
    print(error.errno, end=" ")
print(fcntl.fcntl(os.pipe()[0], 1032))
'''

def seen(sandbox):
    return sandbox.live.runtime_sandbox.posture["Uid"].split()

async def main():
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    hog, neighbour = await engine.create_sandbox(), await engine.create_sandbox()
    before = (await neighbour.run(LOOK)).stdout
    taken = await hog.run(TAKE_ALL)
    assert taken.verdict == "ok", taken
    while_taken = (await neighbour.run(LOOK)).stdout
    alone = await engine.run("import os; print(os.getgroups(), os.getuid())")
    print(json.dumps({
        "before": before, "while": while_taken, "ids": [seen(hog), seen(neighbour)],
        "alone": alone.stdout, "isolation": alone.outcome.isolation.as_json(),
    }))
    await engine.aclose()

asyncio.run(main())
"""
_FREE = "sent 65536\n"


@pytest.fixture
def user(require: Require) -> RangedUser:
    require("subordinate ids", not why_not(), why_not())
    return RangedUser()


def _seen(user: RangedUser, before: Callable[[], None] = lambda: None) -> dict[str, Any]:
    done = user.run_ranged(_EMBED, before=before)
    assert done.code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _check_apart(seen: dict[str, Any]) -> None:
    assert (seen["before"], seen["while"]) == (_FREE, _FREE)
    hog, neighbour = (set(map(int, ids)) for ids in seen["ids"])
    assert len(hog) == len(neighbour) == 1
    assert hog != neighbour
    assert all(FIRST < number < FIRST + COUNT for number in hog | neighbour)
    assert seen["alone"] == "[] 1000\n"
    assert seen["isolation"]["ids"] == "own"


def test_one_sandbox_takes_no_count_from_another(user: RangedUser) -> None:
    with user:
        _check_apart(_seen(user))
        assert user.leftovers() == set()


def test_one_sandbox_takes_no_count_from_another_with_cgroups(
    user: RangedUser, require: Require
) -> None:
    """Version 1 lets an ordinary user move its own processes only."""
    require("cgroup v1 as root", are_possible(), "no writable hierarchies of version 1")
    with user, delegated(user) as groups:
        seen = _seen(user, groups.join)
        _check_apart(seen)
        assert set(seen["isolation"]["limits"].values()) == {"hard"}


def test_control_without_a_range_the_neighbour_has_nothing_left(user: RangedUser) -> None:
    with user:
        user.lists = ""
        seen = _seen(user)
    sent, size = seen["while"].split()
    assert (seen["before"], sent) == (_FREE, "109")
    assert int(size) < 65536
    assert seen["ids"] == [[str(user.uid)] * 4] * 2
    assert seen["isolation"]["ids"] == "shared"


def test_ids_that_cannot_be_mapped_are_not_used(user: RangedUser) -> None:
    """With no_new_privs set-uid programs give nothing: it is found out, and said."""
    from cellwall.linux.syscalls import process

    def forbid() -> None:
        process.do(process.prepare_no_new_privs())

    with user:
        done = user.run_ranged(
            "from cellwall.linux import uid_ranges as uids; print(uids.find())", before=forbid
        )
    assert "outer=None" in done.stdout
    assert "cannot be mapped" in done.stdout


def test_two_engines_of_a_user_have_different_ids(user: RangedUser) -> None:
    source = (
        "from cellwall.linux import uid_ranges as uids\n"
        "ids = uids.find()\n"
        "held = [ids.hold(), ids.hold()]\n"
        "print(*(each.base for each in held), *(each.count for each in held))\n"
    )
    with user:
        first, second, *counts = map(int, user.run_ranged(source).stdout.split())
    assert abs(first - second) >= counts[0] == counts[1]


def test_the_hosts_lists_are_as_they_were(user: RangedUser) -> None:
    before = Path("/etc/subuid").read_bytes()
    with user:
        assert user.run_ranged("print(open('/etc/subuid').read())").stdout.startswith("cw")
    assert Path("/etc/subuid").read_bytes() == before
