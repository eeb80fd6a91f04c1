"""The context of a template's build on its way in: a tar that strangers wrote, as files.

Called by `routes.templates`. The tar is unpacked by `surface.trees.tar_unpack` into an empty folder
of the build's own: files and directories alone, each opened below a descriptor of that folder, so
that no name leads out of it. The invariants: bytes and entries are counted while they come; a
context with links or devices is refused, because a copy without them would be another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from cellwall.model.errors import FileError, UsageError
from cellwall.server.core.errors import HttpError
from cellwall.server.streaming.uploads import FormReader
from cellwall.surface.trees.tar_unpack import Arrival

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from cellwall.server.core.request import Request

BODY_BYTES = 8 << 20
"""Largest JSON of a template, with the files in it."""
_AT_ONCE_BYTES = 1 << 20


async def whole_body(request: Request) -> AsyncIterator[bytes]:
    """Yield the form's JSON, the first part, whole; then the pieces of the context."""
    reader = FormReader(request)
    count = 0
    async for part in reader.parts():
        count += 1
        if count == 1 and part.field == b"build":
            data = b""
            async for piece in reader.pieces(part):
                data += piece
                request.holding().resize(len(data))
                if len(data) > BODY_BYTES:
                    raise HttpError(413, "too_large", f"build: more than {BODY_BYTES} bytes")
            yield data
        elif count == 2 and part.field == b"context":
            async for piece in reader.pieces(part):
                yield piece
        else:
            break
    if count != 2:
        raise UsageError(
            "form: its parts are not `build` and `context`",
            remedy="send `build` (JSON) first, then `context` (a tar), and nothing else",
        )


async def unpacked(request: Request, pieces: AsyncIterator[bytes], held: ExitStack) -> Path:
    """Return the folder with a context; `held` removes it."""
    folder = held.enter_context(request.state.engine.images.workplace()) / "context"
    arrival = await asyncio.to_thread(Arrival, folder, request.settings.upload_bytes)
    try:
        async for data in _gathered(pieces):
            await asyncio.to_thread(arrival.feed, data)
        await asyncio.to_thread(arrival.finish)
    except FileError as error:
        message = error.message.removeprefix("download_dir: ")
        raise UsageError(f"context: {message}", remedy="send a plain tar of files") from None
    finally:
        await asyncio.to_thread(arrival.close)
    if arrival.skipped:
        raise UsageError(
            f"context: it has {arrival.skipped} links or devices",
            remedy="leave them out, by `.dockerignore`, or make them by RUN",
        )
    return folder


async def written(request: Request, data: bytes | None, held: ExitStack) -> Path | None:
    """Return the folder with the files of a body; None without any."""

    async def pieces(whole: bytes) -> AsyncIterator[bytes]:
        yield whole

    return None if data is None else await unpacked(request, pieces(data), held)


async def _gathered(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield larger pieces, so that a thread has something to do."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if len(held) >= _AT_ONCE_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)
