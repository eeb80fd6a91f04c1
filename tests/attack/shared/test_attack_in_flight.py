"""Descriptors on their way between processes: the kernel counts them for a user of the host.

One sandbox leaves as many in unread sockets as it may, while others of the same user start and are
given their input. Control: a program beside it that sends one descriptor itself could before, and
cannot then, so the count was full. The witness is the embedding program, outside of all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from conftest import Require
from kit.attack.delegated import are_possible, delegated
from kit.unprivileged import SHARING_ITS_ID, OrdinaryUser

pytestmark = [pytest.mark.attack, pytest.mark.alone, pytest.mark.rootless]

_EMBED = """
import asyncio, json
from cellwall import Engine, EngineSettings

TAKE_ALL = '''
import os, socket
kept, sent = [], 0
try:
    while True:
        kept.append(socket.socketpair())
        socket.send_fds(kept[-1][0], [b"x"], [0] * 250)
        sent += 250
except OSError as error:
    print(sent, error.errno)
'''
SEND_ONE = '''
import socket
ours, theirs = socket.socketpair()
try:
    socket.send_fds(ours, [b"x"], [0])
    print("sent")
except OSError as error:
    print(error.errno)
'''
ECHO = "console.log(require('fs').readFileSync(0, 'utf8'))"

async def tell(case, running):
    done = await running
    print(json.dumps([case, done.verdict.value, done.stdout, done.outcome.isolation.hardness]))

async def try_all(engine, session, when):
    await tell(when + " plain", engine.run("print(1)"))
    await tell(when + " input", engine.run("print(input())", stdin="1 2 3"))
    await tell(when + " other language", engine.run(ECHO, stdin="4 5 6", language="javascript"))
    await tell(when + " cell", session.run("print(input())", stdin="7 8 9"))
    await tell(when + " sends", engine.run(SEND_ONE))

async def main():
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    session, hog = await engine.create_sandbox(), await engine.create_sandbox()
    await try_all(engine, session, "before")
    await tell("takes", hog.run(TAKE_ALL))
    await try_all(engine, session, "while")
    await engine.aclose()

asyncio.run(main())
"""


def _seen(run: Callable[[], subprocess.CompletedProcess[str]]) -> dict[str, list[object]]:
    done = run()
    assert done.returncode == 0, done.stderr
    lines = (json.loads(line) for line in done.stdout.splitlines())
    return {case: [verdict, stdout, hardness] for case, verdict, stdout, hardness in lines}


def _check(seen: dict[str, list[object]]) -> None:
    """All were run; and the count was full."""
    expected = {
        "plain": "1\n",
        "input": "1 2 3\n",
        "other language": "4 5 6\n",
        "cell": "7 8 9\n",
    }
    for when in ("before", "while"):
        for case, stdout in expected.items():
            assert seen[f"{when} {case}"][:2] == ["ok", stdout], (when, case)
    assert seen["takes"][1] == "500 109\n"
    assert (seen["before sends"][1], seen["while sends"][1]) == ("sent\n", "109\n")


def test_descriptors_in_flight_stop_nobody_elses_program() -> None:
    with OrdinaryUser() as user:

        def run() -> subprocess.CompletedProcess[str]:
            done = user.run(SHARING_ITS_ID + _EMBED)
            return subprocess.CompletedProcess([], done.code, done.stdout, done.stderr)

        _check(_seen(run))


def test_descriptors_in_flight_stop_no_program_alone(require: Require) -> None:
    """With cgroups of the user's own a plain program has the small init (`fast.single_program`)."""
    require("cgroup v1 as root", are_possible(), "no writable hierarchies of version 1")
    with OrdinaryUser() as user, delegated(user) as groups:

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-"],
                input=SHARING_ITS_ID + _EMBED,
                capture_output=True,
                text=True,
                env=user.environment,
                cwd=user.home,
                preexec_fn=groups.enter,
                start_new_session=True,
                timeout=50,
                check=False,
            )

        seen = _seen(run)
        assert seen["while plain"][2]["memory_mb"] == "hard"  # type: ignore[index]
        _check(seen)
