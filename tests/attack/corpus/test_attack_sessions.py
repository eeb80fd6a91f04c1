"""Group Q: stateful sandboxes. A cell may crash, block or hoard; the sandbox's owner finds out."""

from __future__ import annotations

import asyncio

import pytest

from cellwall import AsyncSandbox, SandboxUnavailable, Verdict
from kit.arena import Arena

pytestmark = pytest.mark.attack

_CRASHES = [
    pytest.param("import os\nos._exit(7)", (Verdict.NONZERO_EXIT, 7, None), id="Q01-exit"),
    pytest.param(
        "import ctypes\nctypes.string_at(0)", (Verdict.SIGNALLED, None, 11), id="Q01-segfault"
    ),
    pytest.param("import os\nos.abort()", (Verdict.SIGNALLED, None, 6), id="Q01-abort"),
    pytest.param("import os\nos.kill(os.getpid(), 9)", (Verdict.SIGNALLED, None, 9), id="Q01-kill"),
]


@pytest.mark.parametrize(("code", "end"), _CRASHES)
def test_crashed_context_is_named_and_replaced(
    arena: Arena, code: str, end: tuple[Verdict, int | None, int | None]
) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.run("kept = 1")
            await sandbox.files.write("note", "kept")
            ended = await sandbox.run(code)
            assert (ended.verdict, ended.exit_code, ended.outcome.signal) == end
            assert "state is lost" in " ".join(ended.outcome.notes)
            after = await sandbox.run("'kept' in globals(), open('note').read()")
            assert after.text == "(False, 'kept')"
            assert "new one" in " ".join(after.outcome.notes)

    with arena.leaving_nothing():
        arena.do(attack())


_BLOCKED = [
    pytest.param("while True: pass", True, id="Q06-loop"),
    pytest.param("import time\ntime.sleep(60)", True, id="Q06-sleep"),
    pytest.param("import os\nos.read(os.pipe()[0], 1)", True, id="Q06-pipe"),
    pytest.param(
        "import collections, itertools\ncollections.deque(itertools.repeat(1), maxlen=0)",
        False,
        id="Q02",
    ),
    pytest.param(
        "import signal, time\nsignal.signal(2, signal.SIG_IGN)\ntime.sleep(60)", False, id="Q04"
    ),
]


@pytest.mark.parametrize(("code", "survives"), _BLOCKED)
def test_blocked_cell_is_ended_by_the_wall_clock(arena: Arena, code: str, survives: bool) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.run("kept = 1")
            ended = await sandbox.run(code, timeout=0.5)
            assert ended.verdict is Verdict.WALL_TIME, ended
            if survives:  # interrupted: the context lives and kept its state
                assert (await sandbox.run("kept")).text == "1"
            else:  # it did not stop when asked: after the grace its context was killed
                after = await sandbox.run("'kept' in globals()")
                assert (after.text, "new one" in " ".join(after.outcome.notes)) == ("False", True)

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("case", ["Q06-input"])
def test_waiting_for_input_with_no_client_comes_to_an_end(arena: Arena, case: str) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            ended = await sandbox.run("input('name? ')", timeout=5)
            assert ended.verdict is Verdict.EXCEPTION
            assert ended.error is not None
            assert ended.error.name == "EOFError"

    arena.do(attack())


@pytest.mark.parametrize("case", ["Q04"])
def test_hooks_that_block_a_shutdown_do_not_block_it(arena: Arena, case: str) -> None:
    hooks = (
        "import atexit, signal, sys, threading, time\n"
        "def wait(*_):\n    while True: time.sleep(60)\n"
        "atexit.register(wait)\nsys.excepthook = threading.excepthook = wait\n"
        "for n in (1, 15): signal.signal(n, wait)\n"
        "threading.Thread(target=wait).start()"
    )

    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            assert (await sandbox.run(hooks)).ok
            async with asyncio.timeout(1):
                await sandbox.close()

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.cgroups
@pytest.mark.parametrize("case", ["Q05"])
def test_memory_hoarded_over_many_cells_ends_their_context(arena: Arena, case: str) -> None:
    async def hoard(sandbox: AsyncSandbox) -> tuple[int, Verdict]:
        verdict = Verdict.OK
        for cells in range(50):
            ended = await sandbox.run(f"held_{cells} = b'x' * (4 << 20)")
            verdict = ended.verdict
            if verdict is not Verdict.OK:
                return cells, verdict
        return 50, verdict

    async def attack() -> None:
        async with arena.sandbox(limits={"memory_mb": 96}) as sandbox:
            cells, verdict = await hoard(sandbox)
            # In gVisor the engine looks at what each process has, from time to time.
            most = 50 if sandbox.isolation.runtime == "gvisor" else 25
            assert (cells < most, verdict) == (True, Verdict.MEMORY)
            assert (await sandbox.run("'held_0' in globals()")).text == "False"
        async with arena.sandbox(limits={"memory_mb": 512}) as sandbox:
            assert await hoard(sandbox) == (50, Verdict.OK)

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("case", ["Q07"])
def test_hundred_cells_at_once_run_one_after_the_other(arena: Arena, case: str) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            await sandbox.run("seen = []")
            cells = [sandbox.run(f"seen.append({n})\nprint({n})") for n in range(100)]
            ends = await asyncio.gather(*cells, return_exceptions=True)
            assert not [end for end in ends if isinstance(end, BaseException)]
            assert [end.stdout for end in ends] == [f"{n}\n" for n in range(100)]  # type: ignore[union-attr]
            assert (await sandbox.run("sorted(seen) == list(range(100))")).text == "True"

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param({"idle_s": 1}, "idle", id="Q09-idle"),
        pytest.param({"life_s": 1}, "life", id="Q09-life"),
    ],
)
def test_sandbox_past_its_time_is_gone_with_everything(
    arena: Arena, limits: dict[str, int], reason: str
) -> None:
    async def attack() -> None:
        async with arena.sandbox(limits=limits) as sandbox:
            started = "import subprocess\nsubprocess.Popen(['sleep', '600'])\nopen('x', 'w')"
            assert (await sandbox.run(started)).ok
            ended = asyncio.Event()
            sandbox.live.channel.on_end(ended.set)
            async with asyncio.timeout(5):
                await ended.wait()
            assert sandbox.status == "stopped"
            with pytest.raises(SandboxUnavailable, match=reason):
                await sandbox.run("1")
            with pytest.raises(SandboxUnavailable, match=reason):
                await sandbox.files.read("x")

    with arena.leaving_nothing():
        arena.do(attack())


@pytest.mark.parametrize("case", ["Q02-grace"])
def test_interrupt_reaches_a_cell_and_keeps_its_state(arena: Arena, case: str) -> None:
    async def attack() -> None:
        async with arena.sandbox() as sandbox:
            up = asyncio.Event()
            cell = sandbox.run(
                "n = 7\nprint('up', flush=True)\nimport time\ntime.sleep(60)",
                timeout=20,
                on_stdout=lambda _text: up.set(),
            )
            task = asyncio.ensure_future(cell)
            await up.wait()
            await sandbox.interrupt()
            assert (await task).verdict is Verdict.INTERRUPTED
            assert (await sandbox.run("n")).text == "7"

    arena.do(attack())


_GRANDCHILD = """
import os, time
while not os.path.exists('begun'): time.sleep(0.02)
if os.fork() == 0:
    if os.fork() == 0:
        kept = []
        while True: kept.append(bytearray(b'x') * (4 << 20))
    print(os.WTERMSIG(os.wait()[1]), flush=True)
    os._exit(0)
os.wait()"""
_WAITS = """
import os, time
open('begun', 'w').close()
while not os.path.exists('over'): time.sleep(0.02)"""


_HAD_A_CHILD = f"import os\nos.wait() if os.fork() else os._exit(0)\n{_WAITS}"


@pytest.mark.parametrize("beside", ["cell", "command", "a cell with a child"])
def test_killed_grandchild_is_never_its_neighbours(arena: Arena, beside: str) -> None:
    """Of two that may both have lost a child nobody knows: then no verdict names the memory."""

    async def attack() -> None:
        async with arena.sandbox(limits={"memory_mb": 256}) as sandbox:
            await sandbox.contexts.create("other")
            if beside == "command":
                running = asyncio.ensure_future(sandbox.commands.run(["python3", "-c", _WAITS]))
            else:
                code = _WAITS if beside == "cell" else _HAD_A_CHILD
                running = asyncio.ensure_future(sandbox.run(code, context="other"))  # type: ignore[arg-type]  # any awaitable
            ended = await sandbox.run(_GRANDCHILD)
            assert ended.stdout == "9\n"  # it really was killed
            await sandbox.files.write("over", "")
            innocent = await running
            assert innocent.outcome.verdict is Verdict.OK
            is_known = beside != "a cell with a child"
            assert (ended.verdict is Verdict.MEMORY) is is_known
            told = " ".join((*ended.outcome.notes, *innocent.outcome.notes))
            assert ("does not say" in told) is not is_known

    with arena.leaving_nothing():
        arena.do(attack())
