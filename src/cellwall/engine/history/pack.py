"""A pack: what the files of one sandbox's checkpoints held, each content once.

One file without a name on the engine's disk, which the kernel removes with the engine's process: no
crash leaves one behind. Blocking; `history` calls it in threads, one at a time. The invariant: the
bytes in it are found by digests that the engine made of them, never by a name from inside.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cellwall.guest.files.tree_records import Fingerprint
from cellwall.runtimes.channel.frames import FrameError

_STEP_BYTES = 1 << 20
_INDEX_BYTES = 512
"""What one content takes of this process's memory, rounded up; it counts like disk."""


@dataclass(slots=True)
class _Content:
    """Where the content of one digest lies."""

    size: int
    runs: list[tuple[int, int, int]]
    """Offset in the file, length, offset in the pack."""
    users: int = 0
    """Number of checkpoints that have it."""


class _Coming:
    """A file's content on its way in."""

    def __init__(self, size: int, start: int) -> None:
        self.size = size
        self.start = start
        self.end = 0
        self.runs: list[tuple[int, int, int]] = []
        self.fingerprint = Fingerprint()


class Pack:
    """The contents of one sandbox's checkpoints."""

    def __init__(self, folder: Path) -> None:
        """Make the file, in `folder`, without a name."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._file = self._opened()
        self._end = 0
        self._contents: dict[bytes, _Content] = {}
        self._coming: _Coming | None = None

    def _opened(self) -> IO[bytes]:
        return tempfile.TemporaryFile(dir=self._folder, buffering=0)

    @property
    def taken_bytes(self) -> int:
        """Bytes it takes: on disk, and of the memory that finds them."""
        return self._end + _INDEX_BYTES * len(self._contents)

    def digests(self) -> bytes:
        """Return the digests of all contents, one after the other."""
        return b"".join(self._contents)

    def has(self, digest: bytes) -> bool:
        """Whether it has the content of that digest."""
        return digest in self._contents

    # -- a file coming in --------------------------------------------------------------------------

    def begin(self, size: int) -> None:
        """Begin a file of `size` bytes."""
        self._coming = _Coming(size, self._end)

    def add(self, offset: int, data: bytes) -> None:
        """Add bytes of it. Raises `FrameError` if they do not follow, OSError of the disk."""
        coming = self._coming
        if coming is None or offset < coming.end or offset + len(data) > coming.size:
            raise FrameError("tree_scan: a piece that does not follow")
        coming.fingerprint.add(offset, data)
        if coming.runs and offset == coming.end:
            first, length, place = coming.runs[-1]
            coming.runs[-1] = (first, length + len(data), place)
        else:
            coming.runs.append((offset, len(data), self._end))
        coming.end = offset + len(data)
        self._write(data)

    def finish(self) -> bytes:
        """End the file; return its digest."""
        coming, self._coming = self._coming, None
        if coming is None:
            raise FrameError("tree_scan: the end of no file")
        digest = coming.fingerprint.finish(coming.size)
        if digest in self._contents:
            self._rewind(coming.start)
        else:
            self._contents[digest] = _Content(coming.size, coming.runs)
        return digest

    def put(self, data: bytes) -> tuple[int, int]:
        """Keep bytes that no file holds; return place and length."""
        place = self._end
        self._write(data)
        return place, len(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = os.pwrite(self._file.fileno(), view, self._end)
            self._end += count
            view = view[count:]

    @property
    def end(self) -> int:
        """End of what was written, for `cut`."""
        return self._end

    def cut(self, end: int) -> None:
        """Take back what was written after `end`, and the contents of it that nothing uses."""
        self._contents = {
            digest: each
            for digest, each in self._contents.items()
            if each.users or all(place < end for _, _, place in each.runs)
        }
        self._coming = None
        self._rewind(end)

    def _rewind(self, end: int) -> None:
        self._end = end
        os.ftruncate(self._file.fileno(), end)

    # -- what is there -----------------------------------------------------------------------------

    def use(self, digests: set[bytes]) -> None:
        """Note one more user of these contents."""
        for digest in digests:
            self._contents[digest].users += 1

    def read(self, place: int, length: int) -> bytes:
        """Return bytes that `put` kept."""
        return self._read(place, length)

    def pieces(self, digest: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield a content's pieces: the offset in its file, and the bytes."""
        for offset, length, place in self._contents[digest].runs:
            for at in range(0, length, _STEP_BYTES):
                yield offset + at, self._read(place + at, min(_STEP_BYTES, length - at))

    def _read(self, place: int, length: int) -> bytes:
        data = os.pread(self._file.fileno(), length, place)
        if len(data) != length:
            raise OSError("the file of checkpoints is shorter than what is kept in it")
        return data

    # -- less --------------------------------------------------------------------------------------

    def drop(self, digests: set[bytes], kept: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Note one user less of these contents, and remove what has none.

        `kept` are the places of `put` that stay; their new places are returned. Raises OSError if
        the disk is full; everything stays then.
        """
        for digest in digests:
            self._contents[digest].users -= 1
        try:
            return self._compact(kept)
        except OSError:
            for digest in digests:
                self._contents[digest].users += 1
            raise

    def _compact(self, kept: list[tuple[int, int]]) -> list[tuple[int, int]]:
        old, old_end = self._file, self._end
        self._file, self._end = self._opened(), 0
        try:
            contents = {
                digest: _Content(
                    each.size,
                    [
                        (at, length, self._copy(old.fileno(), place, length))
                        for at, length, place in each.runs
                    ],
                    each.users,
                )
                for digest, each in self._contents.items()
                if each.users
            }
            places = [(self._copy(old.fileno(), place, length), length) for place, length in kept]
        except OSError:
            self._file.close()
            self._file, self._end = old, old_end
            raise
        self._contents = contents
        old.close()
        return places

    def _copy(self, source: int, place: int, length: int) -> int:
        start = self._end
        for at in range(place, place + length, _STEP_BYTES):
            self._write(os.pread(source, min(_STEP_BYTES, place + length - at), at))
        return start

    def close(self) -> None:
        """Give the disk back."""
        self._file.close()
