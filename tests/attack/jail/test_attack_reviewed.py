"""What a review looked at and found to hold, where no other test had looked.

Each has its control: the same reached from outside, or by a sandbox that is allowed to.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kit.arena import Arena

pytestmark = [pytest.mark.attack, pytest.mark.root, pytest.mark.cgroups]
_SMALLEST = {"memory_mb": 16, "cpus": 0.05, "processes": 1}


def _worker_pids(arena: Arena) -> set[int]:
    from kit.arena import descendants

    _, fork_server = arena.do(arena.fork_server())
    return {pid for pid in descendants(fork_server) if pid != fork_server}


def test_smallest_limits_at_once_cost_no_worker_and_no_neighbour(arena: Arena) -> None:
    """A worker is in the next sandbox's cgroups while it clones: with limits of ours."""

    async def storm() -> tuple[list[Any], str]:
        attacks = [
            arena.engine.run("x = bytearray(64 << 20)\n", limits=_SMALLEST, timeout=10)
            for _ in range(24)
        ]
        benign = arena.engine.run("print(sum(range(10)))", timeout=30)
        *ended, fine = await asyncio.gather(*attacks, benign, return_exceptions=True)
        return ended, getattr(fine, "stdout", repr(fine))

    arena.settle()
    before = _worker_pids(arena)
    ended, said = arena.do(storm())
    arena.settle()
    assert said == "45\n"
    assert _worker_pids(arena) == before
    verdicts = {str(getattr(each, "verdict", type(each).__name__)) for each in ended}
    # The control: the limits did strike.
    assert "memory" in verdicts


_PID_1 = """
import errno, json, os, resource, signal, socket
found = {}
def word(name, work):
    try:
        work()
        found[name] = "REACHED"
    except OSError as error:
        found[name] = errno.errorcode[error.errno]
word("signal", lambda: os.kill(1, 0))
word("folder", lambda: os.listdir("/proc/1"))
word("memory", lambda: open("/proc/1/mem", "rb"))
word("descriptors", lambda: os.listdir("/proc/1/fd"))
os.kill(1, signal.SIGTERM)
for number in range(1, 32):
    if number not in (9, 19): os.kill(1, number)
found["fds"] = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
found["me"] = os.getpid()
print("\\n" + json.dumps(found))
"""


def test_init_of_a_program_alone_is_out_of_its_reach(arena: Arena) -> None:
    """The same user's: no signal ends it, nothing of it shows, no descriptor is left over."""
    ended = arena.run(_PID_1)
    assert ended.ok, ended.outcome
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["signal"] == "REACHED"  # it is there
    assert {found[name] for name in ("folder", "memory", "descriptors")} <= {"ENOENT", "EACCES"}
    assert found["fds"] == [0, 1, 2]


_NUMBERS = """
import os
first = os.getpid()
seen = set()
for _ in range(400):
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    seen.add(pid)
print("\\n", first, first in seen, len(seen))
"""


def test_number_of_the_first_context_does_not_come_again(arena: Arena) -> None:
    """The host names it by number; the kernel gives out low ones once."""
    first, again, count = arena.run(_NUMBERS, timeout=20).stdout.split("\n ")[-1].split()
    assert (int(first) < 300, again, int(count)) == (True, "False", 400)
