"""The protocol on stdin and stdout, for one client, over an engine in this process.

Called by `cellwall mcp`. The invariants: the real stdout carries nothing but the protocol, what
else is written goes to stderr; and when stdin ends or a signal comes, every sandbox is destroyed
before the process is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from anyio import wrap_file

from cellwall.apps.mcp.calls import Calls
from cellwall.apps.mcp.catalog import Catalog
from cellwall.apps.mcp.direct import decoded
from cellwall.apps.mcp.library import Embedded
from cellwall.apps.mcp.lines import STEP_BYTES, Lines, Sink
from cellwall.apps.mcp.protocol import make_server
from cellwall.apps.mcp.session import Session
from cellwall.model.errors import CellwallError
from cellwall.surface.tasks import Tasks

if TYPE_CHECKING:
    from io import TextIOWrapper

    from anyio import AsyncFile

    from cellwall.engine.engine import Engine

    _Text = AsyncFile[str]


async def serve(engine: Engine, budget_chars: int) -> None:
    """Serve until stdin ends or a signal comes; the engine is closed then."""
    from mcp.server.stdio import stdio_server

    catalog = Catalog(engine.state_dir)
    session = Session(Embedded(engine), catalog, budget_chars)
    server = make_server(catalog, lambda _: session)
    calls = Calls(session, server.server_info_stamp)
    tasks = Tasks()
    try:
        with _own_streams() as (source, sink):
            async with (
                _messages(source, sink, calls) as (lines, answers),
                stdio_server(lines, answers) as (reading, writing),
            ):
                tasks.spawn(_warm(engine, catalog))
                await server.run(reading, writing, server.create_initialization_options())
    finally:
        await tasks.cancel()
        await session.close()
        await engine.aclose()


def run(engine_of: Any, budget_chars: int) -> None:  # noqa: ANN401 - makes an engine on the loop
    """Serve on an event loop of its own; SIGTERM and SIGINT end it as the end of stdin does."""

    async def main() -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            if task is not None:
                loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serve(engine_of(), budget_chars)

    asyncio.run(main())


async def _warm(engine: Engine, catalog: Catalog) -> None:
    """Have a sandbox ready before the first call; what fails here, the call will say."""
    with contextlib.suppress(CellwallError):
        await engine.run("0", template=catalog.available().best_template)


@contextlib.contextmanager
def _own_streams() -> Iterator[tuple[int, int]]:
    """Give stdin and stdout as descriptors of our own; 0 is empty then, and 1 is stderr.

    Whatever prints, here or in a child, cannot break the protocol.
    """
    source, sink = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    try:
        yield source, sink
    finally:
        os.dup2(source, 0)
        os.dup2(sink, 1)
        os.close(source)
        os.close(sink)


@contextlib.asynccontextmanager
async def _messages(source: int, sink: int, calls: Calls) -> AsyncIterator[tuple[_Text, _Text]]:
    """Give both streams, on the event loop itself where the kernel lets us wait for them.

    There, plain calls do not go through the SDK.
    """
    if not (_is_pipe(source) and _is_pipe(sink)):
        with _files(source, sink) as (reading, writing):
            yield wrap_file(reading), wrap_file(writing)
        return
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=STEP_BYTES)
    incoming, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(source), "rb", 0)
    )
    outgoing, flow = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
        os.fdopen(os.dup(sink), "wb", 0),
    )
    writer = asyncio.StreamWriter(outgoing, flow, None, loop)
    try:
        take = partial(_take, calls, Sink(writer))
        yield cast("_Text", Lines(reader, take)), cast("_Text", Sink(writer))
    finally:
        incoming.close()
        outgoing.close()


def _take(calls: Calls, sink: Sink, line: bytes) -> bool:
    """Serve a message if it is a plain call, or gives one up; False if the SDK is to see it."""
    if b"tools/call" not in line and b"notifications/cancelled" not in line:
        return False
    message = decoded(line)
    if calls.give_up(message):
        return True
    call = calls.begin(message)
    if call is None:
        return False
    call.when_answered(sink.send)
    return True


@contextlib.contextmanager
def _files(source: int, sink: int) -> Iterator[tuple[TextIOWrapper, TextIOWrapper]]:
    with (
        os.fdopen(os.dup(source), encoding="utf-8", errors="replace") as reading,
        os.fdopen(os.dup(sink), "w", encoding="utf-8") as writing,
    ):
        yield reading, writing


def _is_pipe(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
