"""Copies of an ordinary user's sessions: the same answers, the same walls, nothing left.

One child of an id of its own does all of it and prints lines of JSON; the witness of what it left
is outside. CELLWALL_TEST_ROOTLESS says how many random programs there are, and how many samples of
times, which are printed: a fork to its first answer, and a sandbox of a snapshot.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from kit.places import TESTS
from kit.unprivileged import OrdinaryUser
from kit.waiting import wait_until

ROUNDS = int(os.environ.get("CELLWALL_TEST_ROOTLESS", "8"))
# The first test waits for a template that the user builds: half a minute where nothing else runs.
pytestmark = [pytest.mark.rootless, pytest.mark.timeout(240 + 4 * ROUNDS)]
_WORK = """
import asyncio, json, os, sys, time
sys.path.insert(0, sys.argv[1])
from cellwall import CellwallError, Engine, EngineSettings
from kit.copies.programs import PLAIN, program

async def answers(sandbox, cells):
    done = [await sandbox.run(cell) for cell in cells]
    return [(each.verdict.value, each.stdout, each.stderr) for each in done]

async def compared(engine, seed):
    begin, asked = program(seed, PLAIN)
    source = await engine.create_sandbox()
    for cell in begin:
        assert (await source.run(cell)).verdict.value == "ok", cell
    kept = await source.snapshot()
    made = [each.sandbox for each in await source.fork(3, reseed=False)]
    made.append(await engine.copies.restore(kept.id, "", reseed=False))
    engine.copies.delete(kept.id, "")
    fresh = await engine.create_sandbox()
    digests = {each.isolation.posture_digest for each in (fresh, source, *made)}
    said = [await answers(each, asked) for each in (source, *made)]
    for each in (fresh, source, *made):
        await each.close()
    return {"seed": seed, "is_equal": all(each == said[0] for each in said),
            "is_ok": {each[0] for each in said[0]} == {"ok"}, "walls": len(digests)}

async def timed(engine):
    source = await engine.create_sandbox()
    await source.run("x = 1")
    kept = await source.snapshot()
    began = time.perf_counter()
    (fork,) = await source.fork()
    await fork.sandbox.run("print(x)")
    forked = time.perf_counter()
    restored = await engine.copies.restore(kept.id, "")
    took = {"fork_s": forked - began, "restore_s": time.perf_counter() - forked}
    engine.copies.delete(kept.id, "")
    for each in (source, fork.sandbox, restored):
        await each.close()
    await engine.wait_settled()
    await engine.pool.wait_full()
    return took

async def files_alone(engine):
    sandbox = await engine.create_sandbox()
    await sandbox.files.write("note", "kept")
    await sandbox.run("x = 1")
    await sandbox.commands.start("sleep 1000")
    await sandbox.hibernate(keep="files")
    done = await sandbox.commands.run("cat note; ps -eo args | grep -c '[s]leep'")
    gone = await sandbox.run("print('x' in globals())")
    await sandbox.close()
    return {"files_alone": done.stdout + gone.stdout}

async def main():
    engine = Engine(settings=EngineSettings(pool_min=2, pool_max=4))
    for seed in range(int(sys.argv[2])):
        print(json.dumps(await compared(engine, seed)), flush=True)
    for _ in range(int(sys.argv[2])):
        print(json.dumps(await timed(engine)), flush=True)
    print(json.dumps(await files_alone(engine)), flush=True)
    await engine.aclose()
    before = len(os.listdir("/proc/self/fd"))
    print(json.dumps({"descriptors": before}))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def user() -> Iterator[OrdinaryUser]:
    with OrdinaryUser() as made:
        yield made


@pytest.fixture(scope="module")
def said(user: OrdinaryUser) -> list[dict[str, Any]]:
    done = user.run(_WORK, str(TESTS), str(ROUNDS), timeout_s=200 + 4 * ROUNDS)
    assert done.code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_copies_of_a_user_answer_as_their_source(said: list[dict[str, Any]]) -> None:
    compared = [each for each in said if "seed" in each]
    assert len(compared) == ROUNDS
    assert [each for each in compared if not (each["is_equal"] and each["is_ok"])] == []


def test_copies_of_a_user_have_the_walls_of_a_fresh_sandbox(said: list[dict[str, Any]]) -> None:
    assert {each["walls"] for each in said if "seed" in each} == {1}


def test_sandbox_of_a_user_keeps_its_files_alone(said: list[dict[str, Any]]) -> None:
    assert [each["files_alone"] for each in said if "files_alone" in each] == ["kept0\nFalse\n"]


def test_copies_of_a_user_leave_nothing(user: OrdinaryUser, said: list[dict[str, Any]]) -> None:
    for what in ("fork_s", "restore_s"):
        took = [1e3 * each[what] for each in said if what in each]
        print(f"{what}: p50 {statistics.median(took):.1f}, least {min(took):.1f} ms")
    assert said[-1]["descriptors"] < 16
    wait_until(lambda: not user.leftovers(), "nothing of the user's is left")
