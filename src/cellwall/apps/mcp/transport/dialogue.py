"""Dialogue: the messages on stdin and stdout; the SDK, and plain calls that bypass it.

Called by `stdio`, which owns the streams and handles the end. Importing this module imports the
SDK, which takes a second or two.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from anyio import wrap_file
from mcp.server.stdio import stdio_server

from cellwall.apps.mcp.direct import decoded, parse_error
from cellwall.apps.mcp.protocol import make_server
from cellwall.apps.mcp.transport.calls import Calls
from cellwall.apps.mcp.transport.lines import STEP_BYTES, Lines, Sink

if TYPE_CHECKING:
    from io import TextIOWrapper

    from anyio import AsyncFile

    from cellwall.apps.mcp.session import Session
    from cellwall.apps.mcp.tools.catalog import Catalog

    _Text = AsyncFile[str]


async def speak(session: Session, catalog: Catalog, source: int, sink: int) -> None:
    """Serve a client until `source` ends; answers go to `sink`."""
    server = make_server(catalog, lambda _: session)
    calls = Calls(session, server.server_info_stamp)
    async with (
        _messages(source, sink, calls) as (lines, answers),
        stdio_server(lines, answers) as (reading, writing),
    ):
        await server.run(reading, writing, server.create_initialization_options())


@contextlib.asynccontextmanager
async def _messages(source: int, sink: int, calls: Calls) -> AsyncIterator[tuple[_Text, _Text]]:
    """Yield both streams, on the event loop itself if the kernel can wait for them.

    On the loop, plain calls bypass the SDK.
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
    """Serve a message that is a plain call or cancels one; False if the SDK has to handle it.

    Invalid messages are answered here, too: the SDK would not answer them.
    """
    message = decoded(line)
    wrong = parse_error(line) if message is None else None
    if wrong is not None:
        sink.send(wrong)
        return True
    if b"tools/call" not in line and b"notifications/cancelled" not in line:
        return False
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
