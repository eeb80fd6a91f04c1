"""The caller's own directory as a tar stream, on its way into a sandbox.

The other direction, where the stream is hostile, is `tar_unpack`. The invariant: of a file of any
size no more than one piece is in memory, the bytes sent are as many as the header says, and nothing
is left out because it could not be read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from cellwall.model.errors import UsageError

_BLOCK = 512
_PIECE_BYTES = 1024 * 1024


def tar_steps(
    root: Path, is_left_out: Callable[[str], bool] = lambda _name: False
) -> Iterator[bytes]:
    """Yield everything below `root` as tar, in pieces of about 1 MiB.

    `is_left_out` is asked for each name, relative to `root`; of a directory that is left out
    nothing comes.

    Owners and sockets are left out. Raises `UsageError` for a file that may not be read, and for
    one that becomes shorter meanwhile.
    """
    held = bytearray()
    try:
        for piece in _pieces(root, is_left_out):
            held += piece
            if len(held) >= _PIECE_BYTES:
                yield bytes(held)
                held.clear()
    except OSError as error:
        raise UsageError(
            f"upload_dir: read {error.filename or root}: {error.strerror}",
            remedy="let this process read it, or take it out of the directory",
        ) from None
    yield bytes(held) + bytes(2 * _BLOCK)


def _pieces(root: Path, is_left_out: Callable[[str], bool]) -> Iterator[bytes]:
    import tarfile  # few calls send a tree, and every process imports this module

    # Only to describe files; nothing is written through it.
    with tarfile.open(fileobj=io.BytesIO(), mode="w") as describer:
        for directory, names, files in os.walk(root, onerror=_fail):
            names.sort()
            for name in sorted([*names, *files]):
                path = os.path.join(directory, name)
                if is_left_out(os.path.relpath(path, root)):
                    names[:] = [each for each in names if each != name]
                    continue
                info: tarfile.TarInfo | None = describer.gettarinfo(
                    path, os.path.relpath(path, root)
                )
                if info is None:  # a socket
                    continue
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                if info.isreg():
                    yield from _content(path, info.size)


def _fail(error: OSError) -> None:
    raise error


def _content(path: str, size: int) -> Iterator[bytes]:
    left = size
    with open(path, "rb") as stream:
        while left:
            piece = stream.read(min(left, _PIECE_BYTES))
            if not piece:
                raise UsageError(
                    f"upload_dir: {path} became shorter while it was read", remedy="try again"
                )
            left -= len(piece)
            yield piece
    yield bytes(-size % _BLOCK)
