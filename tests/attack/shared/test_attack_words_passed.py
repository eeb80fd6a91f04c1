"""P-15 for what the inside is asked for: calls, terminals, ports, listings and trees.

The caller of these sandboxes takes all that comes as fast as it can, as a tenant may. Others are
the witnesses (`neighbours`), a burner in a session of its own is the control.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from cellwall import AsyncSandbox, Tool, ToolBox
from kit.arena import Arena
from kit.attack.neighbours import BURN, Beside, missed

pytestmark = [pytest.mark.attack, pytest.mark.alone, pytest.mark.cgroups]
Told = Callable[[], None]
Taking = Callable[[AsyncSandbox, Told], Awaitable[object]]
"""Takes what a sandbox says until it is cancelled, and tells of each piece."""

_MOST_CALLS = 1_000_000
_PIECES = "import os\nwhile True: os.write(1, b'said\\n')\n"
_SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
line = server.accept()[0]
line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while True: line.sendall(b"said")
"""
_MANY_FILES = """
import os
for n in range(1000):
    with open(f"{n:03}" + "x" * 50, "w") as file: file.write("some")
"""


async def _take_calls(arguments: str, sandbox: AsyncSandbox, told: Told) -> object:
    async def note(values: list[list[int]]) -> None:
        told()

    code = f"""
import threading, tools
def call():
    while True: tools.note({arguments})
callers = [threading.Thread(target=call, daemon=True) for _ in range(8)]
for caller in callers: caller.start()
for caller in callers: caller.join()
"""
    box = ToolBox([Tool(note, max_bytes=1 << 20)], calls=_MOST_CALLS)
    return await sandbox.run(code, tools=box, timeout=30)


async def _take_terminal(sandbox: AsyncSandbox, told: Told) -> None:
    terminal = await sandbox.commands.start(["python3", "-c", _PIECES], pty=(24, 80))
    async for _ in terminal:
        told()


async def _take_port(sandbox: AsyncSandbox, told: Told) -> None:
    is_up = asyncio.Event()
    code = sandbox.run(_SERVER, timeout=30, on_stdout=lambda _: is_up.set())
    async with asyncio.TaskGroup() as group:
        group.create_task(code)
        await is_up.wait()
        async with await sandbox.ports.connect(8000) as line:
            async for _ in line:
                told()


async def _take_listings(sandbox: AsyncSandbox, told: Told) -> None:
    await sandbox.run(_MANY_FILES)
    while True:
        assert len(await sandbox.files.list()) == 1000
        told()


async def _take_trees(sandbox: AsyncSandbox, told: Told) -> None:
    await sandbox.run(_MANY_FILES)
    while True:
        async with contextlib.aclosing(sandbox.files.stream_dir(".")) as pieces:
            async for _ in pieces:
                told()


async def _burn(sandbox: AsyncSandbox, told: Told) -> object:
    return await sandbox.run("print(1)\n" + BURN, timeout=30, on_stdout=lambda _: told())


@contextlib.asynccontextmanager
async def _taking(arena: Arena, take: Taking) -> AsyncIterator[Beside]:
    beside = Beside(1)
    async with arena.sandbox() as sandbox:
        await sandbox.run("1")
        task = asyncio.ensure_future(take(sandbox, lambda: beside.hears(0, "\n")))
        try:
            await asyncio.wait_for(beside.up.wait(), 10)
            yield beside
            assert not task.done(), f"it ended before its neighbours did: {task}"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(partial(_take_calls, "[]"), id="P-15-calls"),
        pytest.param(partial(_take_calls, "[[]] * 2000"), id="P-15-calls-of-lists"),
        pytest.param(_take_terminal, id="P-15-terminals"),
        pytest.param(_take_port, id="P-15-ports"),
        pytest.param(_take_listings, id="P-15-listings"),
        pytest.param(_take_trees, id="P-15-trees"),
    ],
)
def test_what_is_taken_from_a_session_costs_no_more_than_a_loop(arena: Arena, take: Taking) -> None:
    assert missed(arena, partial(_taking, arena, take), partial(_taking, arena, _burn)) == []
