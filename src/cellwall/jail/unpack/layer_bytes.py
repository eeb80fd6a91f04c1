"""The uncompressed bytes of a layer, piece after piece in memory that two processes share.

RFC 1952 for gzip. Undoing it has a process of its own, and the digest a thread: they are most of
the work, and a host has more than one CPU. The invariant: `check` returns only if all bytes of the
layer have its digest.
"""

from __future__ import annotations

import _thread
import contextlib
import hashlib
import mmap
import os
import zlib
from typing import Callable, Iterator, NamedTuple, Tuple

from cellwall.jail.unpack.beside import Beside, Refused, write_all
from cellwall.jail.unpack.tar_stream import Damaged

PIECE = 1 << 20
_PIECES = 8
_FREE_BYTES = 64 << 20
"""Bytes that a layer may have whatever its compression ratio."""


class Layer(NamedTuple):
    """One layer: part of an open file."""

    file: int
    diff_id: str
    compression: str
    """`gzip`, `none`, or another that is refused."""
    offset: int
    size: int


class Ring:
    """Pieces of memory that two processes share: one fills them in turn, the other frees them."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, _PIECES * PIECE))
        self._free, self._freed = os.pipe()
        os.write(self._freed, bytes(_PIECES))
        self._taken = 0

    def fill(self) -> None:
        """Be the process that fills."""
        os.close(self._freed)

    def empty(self) -> None:
        """Be the process that frees."""
        os.close(self._free)

    def take(self) -> int:
        """Return where the next piece begins, once it is free, or nothing frees any more."""
        os.read(self._free, 1)
        self._taken += 1
        return (self._taken - 1) % _PIECES * PIECE

    def free(self) -> None:
        """Free the piece that was taken first."""
        with contextlib.suppress(BrokenPipeError):  # all is filled, and the process has ended
            os.write(self._freed, b"\0")

    def close(self) -> None:
        """Free everything."""
        os.close(self._freed)


class _Digest:
    """A SHA-256 by a thread of its own, which needs no lock of the interpreter's meanwhile."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()
        self._idle = _thread.allocate_lock()

    def update(self, piece: memoryview) -> None:
        self._idle.acquire()
        _thread.start_new_thread(self._add, (piece,))

    def _add(self, piece: memoryview) -> None:
        try:
            self._sum.update(piece)
        finally:
            self._idle.release()

    def found(self) -> str:
        with self._idle:
            return f"sha256:{self._sum.hexdigest()}"


class LayerBytes:
    """The uncompressed bytes of a layer, in a ring, with their digest so far."""

    def __init__(
        self, layer: Layer, most_ratio: int, ring: Ring, left: Callable[[], None], pipe: int
    ) -> None:
        """`left` is called when a piece is left for the next; `pipe` is for this process alone."""
        self._layer, self._ring, self._left = layer, ring, left
        self._most = max(_FREE_BYTES, layer.size * most_ratio)
        self._fill = _filling(layer, pipe)
        self._digest, self._made = _Digest(), 0
        self._at = self._end = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes; less than `size` at the end only. Raises `Refused`."""
        end = self._at + size
        if end <= self._end:
            found = bytes(self._ring.memory[self._at : end])
            self._at = end
            return found
        parts, missing = [], size
        while missing and (self._at < self._end or self._next()):
            end = min(self._end, self._at + missing)
            parts.append(bytes(self._ring.memory[self._at : end]))
            missing -= end - self._at
            self._at = end
        return b"".join(parts)

    def places(self, size: int) -> Iterator[Tuple[int, int]]:
        """Yield where the next bytes lie, instead of reading them. Raises `Damaged`, `Refused`."""
        while size:
            if self._at == self._end and not self._next():
                raise Damaged("it ends in the middle of a file")
            end = min(self._end, self._at + size)
            yield self._at, end
            size -= end - self._at
            self._at = end

    def _next(self) -> bool:
        """Go on to the next piece; False at the end."""
        if self._end:
            self._left()
        start = self._ring.take()
        piece = self._ring.memory[start : start + PIECE]
        size = self._fill(piece)
        self._at, self._end = start, start + size
        self._made += size
        if self._made > self._most:
            raise Refused("a layer is larger than its compressed size allows", "bound")
        self._digest.update(piece[:size])
        return size > 0

    def check(self) -> None:
        """Read what is left; raise `Refused` unless it all has the layer's digest."""
        while self._next():
            pass
        if self._digest.found() != self._layer.diff_id:
            raise Refused(f"a layer has another digest than {self._layer.diff_id}")


def _filling(layer: Layer, pipe: int) -> Callable[[memoryview], int]:
    """Return what fills memory with the next uncompressed bytes; less than all at the end only."""
    if layer.compression == "none":
        return _from_file(layer)
    if layer.compression == "gzip":
        return _from_process(lambda writing: _unzip(layer, pipe, writing))
    raise Refused(f"a layer is compressed with {layer.compression}", "unsupported")


def _from_file(layer: Layer) -> Callable[[memoryview], int]:
    at, end = layer.offset, layer.offset + layer.size

    def fill(memory: memoryview) -> int:
        nonlocal at
        size = min(len(memory), end - at)
        done = 0
        while done < size:
            made = os.preadv(layer.file, [memory[done:size]], at)
            if not made:
                raise Refused("a layer's file is shorter than was said")
            done += made
            at += made
        return size

    return fill


def _from_process(work: Callable[[int], None]) -> Callable[[memoryview], int]:
    beside = Beside(work)
    ended = False

    def fill(memory: memoryview) -> int:
        nonlocal ended
        done = 0
        while not ended and done < len(memory):
            made = os.readv(beside.file.fileno(), [memory[done:]])
            done += made
            if not made:
                ended = True
                refused = beside.wrong()
                if refused is not None:
                    raise refused
        return done

    return fill


def _unzip(layer: Layer, pipe: int, writing: int) -> None:
    """Undo gzip, the most work of all, in a process of its own."""
    os.close(pipe)  # whose end is seen once its own process closes it
    for piece in _unzipped(_stored(layer)):
        write_all(writing, piece)
    os.close(writing)


def _stored(layer: Layer) -> Iterator[bytes]:
    at, end = layer.offset, layer.offset + layer.size
    while at < end:
        piece = os.pread(layer.file, min(PIECE, end - at), at)
        if not piece:
            raise Refused("a layer's file is shorter than was said")
        at += len(piece)
        yield piece


def _unzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Undo gzip, of one member or several (RFC 1952)."""
    unzip = zlib.decompressobj(31)
    for piece in pieces:
        data = piece
        while data:
            try:
                made = unzip.decompress(data, PIECE)
            except zlib.error as error:
                raise Refused(f"a layer is no gzip: {error}") from None
            if made:
                yield made
            data = unzip.unconsumed_tail
            if unzip.eof:
                data = unzip.unused_data
                unzip = zlib.decompressobj(31)
                if not data.strip(b"\0"):
                    data = b""  # padding
