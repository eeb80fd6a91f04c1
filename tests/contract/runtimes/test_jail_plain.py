"""With `CELLWALL_FAST=0` nothing of `jail/fast` is in use, and what a caller sees is the same.

The witness is the kernel: which program is init of a sandbox, which memory of a worker lies on huge
pages, which network namespaces it holds. The control is the same look with the switch on.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from cellwall import Engine, EngineSettings, Verdict
from cellwall.jail.fast import switch
from cellwall.jail.inspect import posture
from cellwall.runtimes.jail.runtime import JailRuntime
from cellwall.runtimes.jail.sandbox import JailSandbox
from conftest import Require

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("rehearsed")]

_WAITS = "import time\nprint('up', flush=True)\ntime.sleep(60)"


class _Seen(NamedTuple):
    has_interpreter_as_init: bool
    huge_kib: int
    networks_held: int


def _huge_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps").read_text(encoding="ascii", errors="replace")
    return sum(map(int, re.findall(r"AnonHugePages: +(\d+)", text)))


def _networks_held(pid: int) -> int:
    folder = Path(f"/proc/{pid}/fd")
    targets = [os.readlink(folder / name) for name in os.listdir(folder)]
    return sum(target.startswith("net:[") for target in targets)


async def _init_is_an_interpreter(engine: Engine) -> bool:
    up = asyncio.Event()
    task = asyncio.ensure_future(engine.run(_WAITS, template="data", on_event=lambda _: up.set()))
    async with asyncio.timeout(30):
        await up.wait()
    (live,) = engine._programs.under_way
    jail = live.runtime_sandbox
    assert isinstance(jail, JailSandbox)
    name = os.readlink(f"/proc/{jail.pid}/exe")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return "python" in name


async def _seen() -> _Seen:
    engine = Engine(settings=EngineSettings(pool_min=0, pool_max=0))
    try:
        assert (await engine.run("print(1)", template="data")).stdout == "1\n"
        has_interpreter = await _init_is_an_interpreter(engine)
        await engine.run("print(1)", template="data")
        runtime = await engine.runtime("namespace", "jail")
        assert isinstance(runtime, JailRuntime)
        workers = [
            pid for each in runtime._servers.entries for pid in posture.children(each.server.pid)
        ]
        huge, held = max(map(_huge_kib, workers)), max(map(_networks_held, workers))
        return _Seen(has_interpreter, huge, held)
    finally:
        await engine.aclose()


@pytest.fixture(params=[False, True], ids=["off", "on"])
def is_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv(switch.VARIABLE, "1" if request.param else "0")
    return bool(request.param)


def test_the_switch_decides_what_is_in_use(is_on: bool, require: Require) -> None:
    require("x86_64", platform.machine() == "x86_64", "use such a machine")
    usual = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    found = asyncio.run(_seen())
    assert found.has_interpreter_as_init == (not is_on)
    assert (found.networks_held > 1) == is_on  # one is the worker's own
    if "[always]" not in usual:
        # `data`, because a worker of `python` has too small a heap to keep one.
        assert (found.huge_kib > 0) == is_on


def test_answers_sessions_limits_and_verdicts_are_the_same(is_on: bool) -> None:
    async def all_of_it() -> list[object]:
        engine = Engine(settings=EngineSettings(pool_min=1, pool_max=2))
        try:
            program = await engine.run("print(sum(map(int, open(0))))", stdin="1\n2\n")
            failed = await engine.run("raise SystemExit(7)")
            endless = await engine.run("while True: pass", limits={"wall_s": 0.5})
            greedy = await engine.run("x = bytearray(900 << 20)", limits={"memory_mb": 64})
            async with await engine.create_sandbox() as sandbox:
                await sandbox.run("numbers = [3, 1, 2]")
                cell = await sandbox.run("sorted(numbers)")
            ends = [(each.verdict, each.exit_code) for each in (program, failed, endless)]
            return [program.stdout, *ends, greedy.verdict, cell.text]
        finally:
            await engine.aclose()

    assert asyncio.run(all_of_it()) == [
        "3\n",
        (Verdict.OK, 0),
        (Verdict.NONZERO_EXIT, 7),
        (Verdict.WALL_TIME, None),
        Verdict.MEMORY,
        "[1, 2, 3]",
    ]
