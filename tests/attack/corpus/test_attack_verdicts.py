"""Every verdict, from a real end of a real program: what the answer says is what happened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cellwall import Execution, Verdict
from kit.arena import Arena, compiled

pytestmark = pytest.mark.attack

_ENDS: list[Any] = [
    ("print(1)", {}, Verdict.OK, (0, None)),
    ("1 / 0", {}, Verdict.EXCEPTION, (1, None)),
    ("import sys\nsys.exit(9)", {}, Verdict.NONZERO_EXIT, (9, None)),
    ("import os\nos.kill(os.getpid(), 15)", {}, Verdict.SIGNALLED, (None, 15)),
    ("while True: pass", {"timeout": 0.3}, Verdict.WALL_TIME, (None, None)),
    ("while True: pass", {"limits": {"cpu_s": 0.3}}, Verdict.CPU_TIME, (None, None)),
    ("x = b'x' * (256 << 20)", {"limits": {"memory_mb": 64}}, Verdict.MEMORY, (None, 9)),
    # A fork costs a kernel of the sandbox's own memory, too: that limit must not come first.
    (
        "import os\nwhile os.fork() >= 0: pass",
        {"limits": {"memory_mb": 512}, "timeout": 30},
        Verdict.PROCESSES,
        (1, None),
    ),
    (
        "open('x', 'wb').write(bytes(40 << 20))",
        {"limits": {"disk_mb": 16}},
        Verdict.DISK,
        (1, None),
    ),
    ("print('x' * 99999)", {"limits": {"output_kb": 8}}, Verdict.OUTPUT, (0, None)),
]


_COUNTED = {Verdict.MEMORY, Verdict.PROCESSES}
"""Without cgroups a refusal of these comes from limits whose use the kernel does not count."""


@pytest.mark.parametrize(
    ("code", "options", "verdict", "end"),
    [
        pytest.param(*e, id=e[2].value, marks=[pytest.mark.cgroups] if e[2] in _COUNTED else [])
        for e in _ENDS
    ],
)
def test_verdict_is_how_it_ended(
    arena: Arena,
    code: str,
    options: dict[str, Any],
    verdict: Verdict,
    end: tuple[int | None, int | None],
) -> None:
    with arena.leaving_nothing():
        ended = arena.run(code, **options)
    assert (ended.verdict, (ended.exit_code, ended.outcome.signal)) == (verdict, end), ended
    assert ended.ok == (verdict is Verdict.OK)
    is_limit = verdict.value in {"wall_time", "cpu_time", "memory", "processes", "disk", "output"}
    assert ("raise " in " ".join(ended.outcome.notes)) == is_limit  # which limit to raise


_OLD_ENTRY = 'int main(void) { __asm__ volatile("int $0x80" : : "a"(20)); return 0; }'


@pytest.mark.parametrize("case", ["F02"])
def test_killed_at_a_system_call_is_syscall(arena: Arena, tmp_path: Path, case: str) -> None:
    code = "import os\nos.chmod('old', 0o755)\nos.execv('./old', ['old'])"
    ended = arena.run(code, files={"old": compiled(_OLD_ENTRY, tmp_path)})
    assert (ended.verdict, ended.outcome.signal) == (Verdict.SYSCALL, 31), ended


async def _running(arena: Arena) -> tuple[Any, asyncio.Task[Execution], contextlib.AsyncExitStack]:
    stack = contextlib.AsyncExitStack()
    sandbox = await stack.enter_async_context(arena.sandbox())
    up = asyncio.Event()
    cell = sandbox.run(
        # Not one long sleep: a signal in front of its system call would wait until it returns.
        "print('up', flush=True)\nimport time\nwhile True: time.sleep(0.1)",
        timeout=20,
        on_stdout=lambda _text: up.set(),
    )
    task = asyncio.ensure_future(cell)
    await up.wait()
    return sandbox, task, stack


@pytest.mark.parametrize("verdict", [Verdict.CANCELLED, Verdict.INTERRUPTED, Verdict.SANDBOX_ERROR])
def test_end_from_outside_says_who_did_it(arena: Arena, verdict: Verdict) -> None:
    async def attack() -> None:
        sandbox, task, stack = await _running(arena)
        async with stack:
            if verdict is Verdict.CANCELLED:
                await sandbox.close()
            elif verdict is Verdict.INTERRUPTED:
                await sandbox.interrupt()
            else:
                os.kill(sandbox.live.runtime_sandbox.pid, signal.SIGKILL)
            assert (await task).verdict is verdict

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.needs("gcc")
def test_what_a_compiler_refuses_has_a_verdict_of_its_own(arena: Arena) -> None:
    with arena.leaving_nothing():
        ended = arena.do(arena.engine.run("int main() { return nothing; }", language="c"))
    assert ended.verdict is Verdict.COMPILE_ERROR
    assert ended.error is not None
    assert "nothing" in ended.error.traceback


def test_every_verdict_has_an_end_here() -> None:
    shown = {end[2] for end in _ENDS} | {Verdict.SYSCALL, Verdict.CANCELLED, Verdict.COMPILE_ERROR}
    shown |= {Verdict.INTERRUPTED, Verdict.SANDBOX_ERROR}
    assert shown == set(Verdict)
