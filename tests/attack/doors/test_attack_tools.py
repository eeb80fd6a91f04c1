"""Hostile callers of host tools in a real sandbox. This process, whose tools they are, watches.

Each attack speaks to init's socket as caller code can, past everything that `tools` checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cellwall import AsyncSandbox, Event, Execution, Tool, ToolBox, Verdict
from kit.arena import Arena, fresh_peak_kib, peak_kib
from kit.hostile_calls import RAW, big, flood, hang

pytestmark = pytest.mark.attack

_HOST_MAY_GROW_KIB = 8 * 1024


def grown_kib(work: Callable[[], object]) -> int:
    before = fresh_peak_kib()
    work()
    return peak_kib() - before


@pytest.mark.parametrize("tool", ["hang", "big"])
def test_flood_of_calls_leaves_the_host_flat(arena: Arena, tool: str) -> None:
    events: list[Event] = []
    box = ToolBox([hang, big])
    arena.run("tools.big('x')", tools=box)  # what checks arguments is imported from here on

    def attack() -> None:
        execution = arena.beside(flood(tool), tools=box, timeout=50, on_event=events.append)
        assert execution.stdout.endswith("made 10000\n"), execution

    with arena.leaving_nothing():
        assert grown_kib(attack) <= _HOST_MAY_GROW_KIB
    calls = [event for event in events if event.kind == "tool_call"]
    assert 8 <= len(calls) <= 1000


def test_control_flood_within_wide_bounds_is_seen_in_memory(arena: Arena) -> None:
    def attack() -> None:
        box = ToolBox([Tool(hang, max_bytes=1 << 20)], at_once=64)
        execution = arena.run(flood("hang", 64, 1_000_000), tools=box, timeout=50)
        assert execution.stdout.endswith("made 64\n"), execution

    assert grown_kib(attack) > 2 * _HOST_MAY_GROW_KIB


def test_command_beside_the_program_cannot_call(arena: Arena) -> None:
    called: list[str] = []

    def note(x: str) -> str:
        called.append(x)
        return "noted"

    found = '__import__("tools")._line._link._address'
    probe = RAW.replace(found, "'\\0' + __import__('sys').argv[1]") + (
        "try: print(len(call('note', b'{\"x\": \"command\"}').recv(99)))\n"
        "except ConnectionError: print(0)"
    )

    async def attack() -> None:
        async with arena.sandbox(tools=[note]) as sandbox:
            address = (await sandbox.run(RAW + "print(address[1:], end='')")).stdout
            beside = asyncio.ensure_future(sandbox.run("import time; time.sleep(60)"))
            done = await sandbox.commands.run(["python3", "-c", probe, address])
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
            # The control: the same lines, said by the context.
            own = await sandbox.run(RAW + "hear(call('note', b'{\"x\": \"context\"}'))")
            assert (done.stdout, own.text) == ("0\n", "'noted'"), done
            assert called == ["context"]

    arena.do(attack())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("b'{'", "invalid"),
        ("b'[' * 100_000", "invalid"),
        ("b'{\"x\": ' + b'[' * 300 + b']' * 300 + b'}'", "invalid"),
        ("b'{\"x\": NaN}'", "invalid"),
        ("b'{\"x\": \"' + b'x' * 300_000 + b'\"}'", "too_large"),
        ("b'{\"y\": 1}'", "invalid"),
    ],
)
def test_forged_arguments_get_a_typed_error(arena: Arena, body: str, kind: str) -> None:
    code = (
        RAW + f"said = hear(call('big', {body})); print(said['kind'])\nprint(len(tools.big('x')))"
    )
    execution = arena.run(code, tools=[big])
    assert execution.stdout.split()[-2:] == [kind, "250000"], execution


@pytest.mark.parametrize("name", ["", "no_such", "__class__", "../big", "x" * 64, "x" * 65])
def test_tool_that_does_not_exist_gets_a_typed_error(arena: Arena, name: str) -> None:
    code = RAW + f"print(hear(call({name!r}, b'{{}}'))['kind'])"
    assert arena.run(code, tools=[big]).stdout.endswith("unknown\n")


def _cells(arena: Arena, *cells: str, **options: Any) -> list[Execution]:
    async def work() -> list[Execution]:
        async with arena.sandbox(**options) as sandbox:
            return [await _cell(sandbox, code) for code in cells]

    return arena.do(work())


async def _cell(sandbox: AsyncSandbox, code: str) -> Execution:
    return await sandbox.run(code, timeout=20)


def test_oversize_frame_ends_its_context_and_the_session_goes_on(arena: Arena) -> None:
    attack = RAW + (
        "import time\ntry: call('big', bytes(1 << 21))\n"
        "except OSError: pass\n"  # it hung up; the signal follows
        "time.sleep(60)"
    )
    killed, after = _cells(arena, attack, "len(tools.big('x'))", tools=[big])
    assert (killed.verdict, after.text) == (Verdict.SIGNALLED, "250000")


def test_thread_that_outlives_its_cell_calls_nobody(arena: Arena) -> None:
    called: list[str] = []

    def note(x: str) -> None:
        called.append(x)

    attack = (
        "import os, threading, time\n"
        "def late():\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    try: tools.note('late')\n"
        "    except ToolError as e: open('end', 'w').write(e.kind)\n"
        "threading.Thread(target=late).start()\n"
        "tools.note('early')\n"
    )

    async def work() -> tuple[Execution, str]:
        async with arena.sandbox(tools=[note]) as sandbox:
            first = await sandbox.run(attack)
            await sandbox.files.write("go", "")
            wait = "while [ ! -s end ]; do sleep 0.05; done; cat end"
            done = await sandbox.commands.run(["sh", "-c", wait], timeout=20)
            return first, done.stdout

    first, end = arena.do(work())
    assert first.verdict is Verdict.OK
    assert (end, called) == ("ended", ["early"])
