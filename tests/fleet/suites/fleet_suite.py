"""A fleet at work: programs, many of them, sessions, errors, and who may join.

Runs in the environment of `suite-ray`, in a fresh network namespace; `test_fleet_at_work`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.fleet import Fleet
from cellwall.model.errors import (
    Conflict,
    NotFound,
    SandboxUnavailable,
    UsageError,
)
from kit.fleet.driving import ADDRESS, OURS, Driver, driver
from kit.fleet.house import House, born, house
from kit.waiting import wait_until

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def around() -> Iterator[House]:
    with house(nodes=2) as made:
        yield made


@pytest.fixture(scope="module")
def place(around: House) -> Iterator[Driver]:
    with driver(around) as made:
        made.wait_ready(2)
        yield made


def test_a_program_runs_and_says_where(place: Driver) -> None:
    done = place.loop.do(
        place.fleet.arun("import sys; print(sys.stdin.read()); result = {'n': 7}", stdin="hello")
    )
    assert (done.stdout, done.result, done.ok) == ("hello\n", {"n": 7}, True)
    assert done.node in {each.name for each in place.fleet.nodes()}
    assert done.outcome.isolation.runtime == "jail"
    assert done.started_at > 0


def test_arguments_cross(place: Driver) -> None:
    done = place.loop.do(
        place.fleet.arun(
            "import os, sys; open('out.bin', 'wb').write(open('in.bin', 'rb').read()[::-1])\n"
            "print(os.environ['WORD'], sys.argv[1:])",
            files={"in.bin": b"\x00\xff1"},
            env={"WORD": "w"},
            args=["a", "b"],
            collect=["out.bin"],
            limits={"memory_mb": 300},
            timeout=9,
        )
    )
    assert done.stdout == "w ['a', 'b']\n"
    assert done.files == {"out.bin": b"1\xff\x00"}
    assert (done.limits.memory_mb, done.limits.wall_s) == (300, 9)


def test_limits_are_verdicts(place: Driver) -> None:
    done = place.loop.do(place.fleet.arun("while True: pass", timeout=0.5))
    assert done.verdict == "wall_time"
    done = place.loop.do(place.fleet.arun("raise ValueError('no')"))
    assert done.verdict == "exception"
    assert done.error is not None
    assert done.error.name == "ValueError"


def test_many_run_on_every_node_and_each_has_its_result(place: Driver) -> None:
    async def work() -> dict[int, Any]:
        found = {}
        programs = ({"code": f"print({n} * 2)", "language": "python"} for n in range(120))
        async for each in place.fleet.map(programs):
            assert each.index not in found
            found[each.index] = each.get()
        return found

    found = place.loop.do(work())
    assert [found[n].stdout for n in range(120)] == [f"{n * 2}\n" for n in range(120)]
    assert {each.node for each in found.values()} == {each.name for each in place.fleet.nodes()}


def test_one_wrong_program_is_one_wrong_result(place: Driver) -> None:
    async def source() -> Any:
        yield "print(1)"
        yield {"code": "print(2)", "language": "none-such"}
        yield {"code": "print(3)", "tools": [print]}
        yield {"stdin": "no code"}
        yield "print(5)"

    async def work() -> dict[int, Any]:
        return {each.index: each async for each in place.fleet.map(source(), timeout=9)}

    found = place.loop.do(work())
    assert [found[n].get().stdout for n in (0, 4)] == ["1\n", "5\n"]
    assert isinstance(found[1].error, NotFound)
    assert isinstance(found[2].error, UsageError)
    assert isinstance(found[3].error, UsageError)
    with pytest.raises(NotFound, match="node "):
        found[1].get()


def test_a_reader_who_leaves_leaves_nothing_running(place: Driver) -> None:
    async def work() -> None:
        async with contextlib.aclosing(
            place.fleet.map("import time; time.sleep(0.1)" for _ in range(10_000))
        ) as results:
            async for _each in results:
                break
        for _ in range(100):
            if not any(each.given for each in place.fleet.nodes()):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(place.fleet.nodes())

    place.loop.do(work())


def test_a_failing_source_fails_its_reader(place: Driver) -> None:
    def source() -> Iterator[str]:
        yield "print(1)"
        raise ZeroDivisionError

    async def work() -> None:
        async for each in place.fleet.map(source()):
            assert each.get().stdout == "1\n"

    with pytest.raises(ZeroDivisionError):
        place.loop.do(work())


def test_a_session_stays_on_its_node(place: Driver) -> None:
    async def work() -> None:
        async with place.fleet.sandbox(limits={"memory_mb": 300}) as sandbox:
            assert (await sandbox.run("x = 40")).ok
            done = await sandbox.run("x + 2")
            assert (done.text, done.node) == ("42", sandbox.node)
            assert sandbox.limits.memory_mb == 300
            await sandbox.files.write("deep/data.bin", b"\x00\xff")
            assert await sandbox.files.read("deep/data.bin", text=False) == b"\x00\xff"
            assert [each.name for each in await sandbox.files.list("deep")] == ["data.bin"]
            assert not await sandbox.files.exists("none")
            with pytest.raises(FileNotFoundError):
                await sandbox.files.read("none")
            shown = await sandbox.commands.run(["wc", "-c", "deep/data.bin"])
            assert shown.stdout.startswith("2 ")
            with pytest.raises(UsageError, match="does not stream"):
                sandbox.stream("1")
            with pytest.raises(UsageError, match="on_stdout"):
                await sandbox.run("1", on_stdout=print)
        assert sandbox.status == "stopped"
        with pytest.raises(SandboxUnavailable):
            await sandbox.run("x")

    place.loop.do(work())


def test_nothing_of_a_sandbox_is_unpickled(place: Driver) -> None:
    """A value that pickles is one that would run here; it comes as JSON or not at all."""

    async def work() -> Any:
        code = "class Bad:\n    def __reduce__(self): return (print, ('ran',))\nresult = Bad()"
        return await place.fleet.arun(code)

    done = place.loop.do(work())
    assert done.result is None or isinstance(done.result, str)


def test_a_template_that_is_nowhere_is_named(place: Driver) -> None:
    with pytest.raises(NotFound, match="none-such"):
        place.loop.do(place.fleet.arun("1", template="none-such"))


def test_the_synchronous_face(around: House) -> None:
    os.environ.update(around.environment(around.place / "state0"))
    with Fleet.blocking(ADDRESS, resource=OURS) as fleet:
        assert fleet.run("print(1)").stdout == "1\n"
        found = sorted((each.index, each.get().stdout) for each in fleet.map(["print(2)"] * 3))
        assert found == [(n, "2\n") for n in range(3)]
        assert {each.state for each in fleet.nodes()} == {"ready"}


def test_the_reward_function_of_the_example(around: House) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLES / "fleet")!r})
import reward
solutions = ["```python\\nprint(int(input()) * 2)\\n```", "```python\\nprint(0)\\n```", "none"]
tests = [{{"inputs": ["1", "2"], "outputs": ["2", "4"]}}] * 3
print(reward.compute_score(["code"] * 3, solutions, tests, [{{}}] * 3))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**around.environment(around.place / "state0"), "RAY_ADDRESS": ADDRESS},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.splitlines()[-1] == "[1.0, 0.0, 0.0]", done.stderr


def test_the_example_of_the_page(around: House) -> None:
    snippet = EXAMPLES.parent / "docs" / "snippets" / "fleet" / "first.py"
    done = subprocess.run(
        [sys.executable, snippet],
        env={**around.environment(around.place / "state0"), "RAY_ADDRESS": ADDRESS},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "ran on node" in done.stdout


def test_without_a_token_it_does_not_join(around: House) -> None:
    code = f"""
import asyncio
from cellwall.fleet import Fleet
from cellwall.model.errors import HostUnsupported
async def main():
    try:
        await Fleet.connect({ADDRESS!r})
    except HostUnsupported as error:
        print(error.feature, error.remedy)
asyncio.run(main())
"""
    environment = around.environment(around.place / "state0") | {"RAY_AUTH_MODE": "disabled"}
    del environment["RAY_AUTH_TOKEN_PATH"]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.startswith("token "), done.stderr
    assert "trusted=True" in done.stdout


def test_a_closed_fleet_says_so_and_leaves_nothing(place: Driver) -> None:
    engines = {node.actor() for node in place.house.nodes}
    place.loop.do(place.fleet.close())
    with pytest.raises(Conflict):
        place.loop.do(place.fleet.arun("1"))
    assert_left_nothing(place.house, engines)


def assert_left_nothing(around: House, engines: set[int]) -> None:
    """No engine, nothing below one, and no ledger; Ray's own processes may be there."""
    began = {pid: born(pid) for pid in engines}
    wait_until(lambda: not any(began[pid] and born(pid) == began[pid] for pid in engines), "ends")
    for node in around.nodes:
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in node.processes()}
        assert not {name for name in names if "cellwall" in name or "NodeActor" in name}, names
        assert list((node.state / "fleet").iterdir()) == []


def test_a_head_that_dies_is_told_and_every_node_ends_cleanly(around: House) -> None:
    """The last one: Ray itself ends a minute later."""
    code = f"""
import asyncio, sys, time
from cellwall.fleet import Fleet
from cellwall.model.errors import NodeLost
async def main():
    fleet = await Fleet.connect({ADDRESS!r}, resource={OURS!r}, fence_s=4)
    sandbox = await fleet.sandbox()
    await sandbox.run("x = 1")
    print("ready", flush=True)
    began = time.monotonic()
    try:
        while True:
            await fleet.arun("print(1)")
    except NodeLost as error:
        print("lost", round(time.monotonic() - began), error.message, flush=True)
    try:
        await sandbox.run("x")
    except NodeLost:
        print("session lost", flush=True)
    await fleet.close()
    print("closed", flush=True)
asyncio.run(main())
"""
    driven = subprocess.Popen(
        [sys.executable, "-c", code],
        env=around.environment(around.place / "state0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driven.stdout is not None
    while driven.stdout.readline() != "ready\n":
        assert driven.poll() is None, driven.communicate()
    engines = {node.actor() for node in around.nodes}
    around.kill_head()
    said, errors = driven.communicate(timeout=60)
    assert driven.returncode == 0, errors
    assert "session lost" in said
    assert "closed" in said
    assert "head of the cluster" in said
    assert_left_nothing(around, engines)
