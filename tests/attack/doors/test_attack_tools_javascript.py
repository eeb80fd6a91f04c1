"""Hostile JavaScript that calls host tools past what `tools` checks; this process watches.

Caller code finds the driver's pipe in its own command line, and says on it what it likes.
"""

from __future__ import annotations

from typing import Any

import pytest

from cellwall import Event, Execution, Tool, ToolBox, Verdict
from kit.arena import Arena, fresh_peak_kib, peak_kib
from kit.hostile_calls import big, hang

pytestmark = [pytest.mark.attack, pytest.mark.needs("node")]

_HOST_MAY_GROW_KIB = 8 * 1024

_RAW = r"""
const fs = require('fs');
const words = fs.readFileSync('/proc/self/cmdline', 'utf8').split('\0');
const pipe = words.filter((word) => /^\/proc\/\d+\/fd\/\d+$/.test(word)).pop();
function say(message) {
  const fd = fs.openSync(pipe, 'w');
  const data = Buffer.from(JSON.stringify(message) + '\n');
  for (let at = 0; at < data.length; ) at += fs.writeSync(fd, data, at);
  fs.closeSync(fd);
}
"""


def flood(tool: str, count: int = 10_000, size: int = 10_000) -> str:
    """Return code whose calls nobody ever reads the answers of."""
    return _RAW + (
        f"const body = JSON.stringify({{ x: 'x'.repeat({size}) }});\n"
        f"let n = 0;\n"
        f"while (n < {count}) say({{ ev: 'call', call: ++n, tool: '{tool}', body }});\n"
        "console.log('made', n);"
    )


@pytest.mark.parametrize("tool", ["hang", "big"])
def test_flood_of_calls_leaves_the_host_flat(arena: Arena, tool: str) -> None:
    events: list[Event] = []
    box = ToolBox([hang, big])
    arena.run("tools.big('x')", tools=box)  # what checks arguments is imported from here on
    with arena.leaving_nothing():
        before = fresh_peak_kib()
        execution = arena.beside(
            flood(tool), "javascript", tools=box, timeout=50, on_event=events.append
        )
        grown = peak_kib() - before
    assert execution.stdout.endswith("made 10000\n"), execution
    assert grown <= _HOST_MAY_GROW_KIB
    calls = [event for event in events if event.kind == "tool_call"]
    assert 8 <= len(calls) <= 1000


def test_control_flood_within_wide_bounds_is_seen_in_memory(arena: Arena) -> None:
    box = ToolBox([Tool(hang, max_bytes=1 << 20)], at_once=64)
    before = fresh_peak_kib()
    execution = arena.run(flood("hang", 64, 1_000_000), "javascript", tools=box, timeout=50)
    assert execution.stdout.endswith("made 64\n"), execution
    assert peak_kib() - before > 2 * _HOST_MAY_GROW_KIB


def test_ten_thousand_promises_get_their_number_or_a_typed_error(arena: Arena) -> None:
    called: list[str] = []

    async def note(x: str) -> None:
        called.append(x)

    code = (
        "Promise.allSettled(Array.from({ length: 10000 }, () => tools.note({ x: '' })))"
        ".then((all) => { const kinds = {}; for (const { reason } of all) {"
        " const kind = reason?.kind ?? 'ok'; kinds[kind] = (kinds[kind] ?? 0) + 1; }"
        " console.log(JSON.stringify(kinds)); });"
    )
    box = ToolBox([note], calls=300)
    execution = arena.run(code, "javascript", tools=box, timeout=50)
    assert execution.stdout.endswith('{"ok":300,"limit":9700}\n'), execution
    assert len(called) == 300


def _cells(arena: Arena, *cells: str, **options: Any) -> list[Execution]:
    async def work() -> list[Execution]:
        async with arena.sandbox(**options) as sandbox:
            return [await sandbox.run(code, "javascript", timeout=20) for code in cells]

    return arena.do(work())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("'{'", "invalid"),
        ("'['.repeat(100_000)", "invalid"),
        ("'{\"x\": ' + '['.repeat(300) + ']'.repeat(300) + '}'", "invalid"),
        ("'{\"x\": NaN}'", "invalid"),
        ("'{\"x\": \"' + 'x'.repeat(300_000) + '\"}'", "too_large"),
        ("'{\"x\": \"' + 'x'.repeat(1_200_000) + '\"}'", "too_large"),
        ("'{\"y\": 1}'", "invalid"),
        ("'{\"x\": \"\"}', tool: 'no_such'", "unknown"),
        ("'{\"x\": \"\"}', tool: 'x'.repeat(70)", "unknown"),
    ],
)
def test_forged_call_gets_a_typed_error(arena: Arena, body: str, kind: str) -> None:
    # The answer to the forged call 1 is the first that is read for the real call 1.
    attack = _RAW + (
        "const first = tools.hang({ x: '' });\n"
        f"say({{ ev: 'call', call: 1, tool: 'big', body: {body} }});\n"
        "try { await first } catch (error) { console.log(error.kind) }"
    )
    said, after = _cells(arena, attack, "(await tools.big({ x: '' })).length", tools=[hang, big])
    assert (said.stdout.endswith(f"{kind}\n"), after.text) == (True, "250000"), said


@pytest.mark.parametrize(
    "message",
    [
        "{ ev: 'call' }",
        "{ ev: 'call', call: 1.5, tool: 'big', body: '{}' }",
        "{ ev: 'call', call: 1, tool: 7, body: '{}' }",
        "{ ev: 'answer', call: 1 }",
    ],
)
def test_forged_message_ends_its_context_and_the_session_goes_on(
    arena: Arena, message: str
) -> None:
    attack = _RAW + f"say({message}); await new Promise((done) => setTimeout(done, 15000)); 'on'"
    killed, after = _cells(arena, attack, "(await tools.big({ x: '' })).length", tools=[big])
    assert killed.verdict is not Verdict.OK
    assert after.text == "250000"


def test_answers_that_nobody_reads_block_nobody(arena: Arena) -> None:
    # Busy for a while with eight large answers on their way; output goes on, so does the cell.
    code = (
        "const all = Array.from({ length: 8 }, () => tools.big({ x: '' }));\n"
        "await tools.big({ x: '' }).then(() => 0);\n"
        "const end = Date.now() + 500; while (Date.now() < end) console.log('.'.repeat(1000));\n"
        "(await Promise.all(all)).map((each) => each.length).join()"
    )
    (execution,) = _cells(arena, code, tools=[big])
    assert execution.text == repr(",".join(["250000"] * 8)), execution
