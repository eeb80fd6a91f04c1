"""Files and directories of the caller's own machine, as pieces to send and from pieces received.

Used by `files.upload`, `download` and their siblings for directories, embedded and remote. Bytes
from a sandbox go into a file here only under the name that the caller gave. The invariant: a file
that is being received appears under its name only when it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from pathlib import Path

from cellwall.model.errors import CellwallError, UsageError
from cellwall.model.unicode import utf8
from cellwall.surface.shared.callbacks import OnProgress
from cellwall.surface.trees.tar_pack import tar_steps
from cellwall.surface.trees.tar_unpack import Arrival

_PIECE_BYTES = 1024 * 1024


class Progress:
    """Counts bytes and reports them to the caller."""

    def __init__(self, on_progress: OnProgress | None, total: int | None = None) -> None:
        """`total` is the number of expected bytes; None if it is unknown."""
        self._on_progress = on_progress
        self._total = total
        self.bytes = 0

    def add(self, count: int) -> None:
        """Count bytes that have passed."""
        self.bytes += count
        if self._on_progress is not None:
            self._on_progress(self.bytes, self._total)


def check_content(content: str | bytes) -> bytes:
    """Return the bytes to write; `UsageError` unless `content` is text or bytes."""
    if isinstance(content, str):
        return utf8(content, "content")
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    # `bytes` accepts more types: of a number it makes as many NULs.
    raise UsageError(
        f"content: {type(content).__name__} is not text", remedy="give a string or bytes"
    )


async def check_file(path: Path, step: str) -> int:
    """Return the size of a regular file of the caller's; `UsageError` for anything else."""
    with _refused(f"{step}: read {path}", "name a file you may read"):
        if not await asyncio.to_thread(path.is_file):
            raise UsageError(f"{step}: {path} is not a file", remedy="name a file of this machine")
        return await asyncio.to_thread(_size_of, path, step)


def _size_of(path: Path, step: str) -> int:
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if not size and stream.read(1):
            raise UsageError(
                f"{step}: {path} does not say its size, as files below /proc do",
                remedy="copy it to a disk, and take the copy",
            )
    return size


async def check_directory(path: Path, step: str) -> None:
    """Raise `UsageError` unless `path` is a directory of the caller's."""
    with _refused(f"{step}: read {path}", "name a directory you may read"):
        if not await asyncio.to_thread(path.is_dir):
            raise UsageError(f"{step}: {path} is not a directory", remedy="name a directory")


@contextlib.contextmanager
def _refused(step: str, remedy: str) -> Iterator[None]:
    """Convert an error of this machine about the caller's files into a `UsageError`."""
    try:
        yield
    except CellwallError:
        raise  # from the other side: a file error of the sandbox's is an `OSError`, too
    except OSError as error:
        raise UsageError(f"{step}: {error.strerror}", remedy=remedy) from None


async def file_pieces(path: Path, size: int, progress: Progress) -> AsyncIterator[bytes]:
    """Yield the first `size` bytes of a file; `UsageError` if it has fewer by then."""
    with _refused(f"upload: read {path}", "name a file you may read"):
        opened = await asyncio.to_thread(path.open, "rb")
    with opened as stream:
        left = size
        while left:
            piece = await asyncio.to_thread(stream.read, min(left, _PIECE_BYTES))
            if not piece:
                raise UsageError(f"upload: {path} became shorter meanwhile", remedy="try again")
            left -= len(piece)
            yield piece
            progress.add(len(piece))


async def tree_pieces(root: Path, progress: Progress) -> AsyncIterator[bytes]:
    """Yield a directory as a tar stream."""
    steps = tar_steps(root)
    while step := await asyncio.to_thread(next, steps, b""):
        yield step
        progress.add(len(step))


async def save(path: Path, pieces: AsyncIterable[bytes], progress: Progress) -> int:
    """Write pieces to a caller's file, which appears when all are there; return its size."""
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    with _refused(f"download: write {path}", "name a file you may write"):
        if await asyncio.to_thread(path.is_dir):
            raise UsageError(f"download: {path} is a directory", remedy="name a file")
        try:
            with await asyncio.to_thread(draft.open, "xb") as stream:
                async for piece in pieces:
                    await asyncio.to_thread(stream.write, piece)
                    progress.add(len(piece))
            await asyncio.to_thread(draft.replace, path)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    return progress.bytes


async def unpack(
    local: Path, pieces: AsyncIterable[bytes], most_bytes: int, progress: Progress
) -> int:
    """Unpack a hostile tar stream into a new or empty directory; return its file count."""
    with _refused(f"download_dir: write {local}", "name a directory you may write"):
        arrival = await asyncio.to_thread(Arrival, local, most_bytes)
    try:
        async for piece in pieces:
            await asyncio.to_thread(arrival.feed, piece)
            progress.add(len(piece))
        return await asyncio.to_thread(arrival.finish)
    finally:
        await asyncio.to_thread(arrival.close)
