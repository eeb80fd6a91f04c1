"""The uncompressed bytes of a layer, piece after piece in memory that two processes share.

RFC 1952 for gzip. Decompression has a process of its own, and the digest a thread: they are most of
the work, and a host has more than one CPU. The invariants: `check` returns only if all bytes of the
layer have its digest; a piece is filled again only once the consumer has freed it.
"""

from __future__ import annotations

import _thread
import contextlib
import hashlib
import mmap
import os
import zlib
from typing import Callable, Iterator, NamedTuple, Tuple

from cellwall.jail.unpack.child_process import ChildProcess, Refused, write_all
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
    """Pieces of shared memory: a process, the producer, fills them in turn, a consumer frees them.

    Made before the fork of the producer. It waits for a free piece at a pipe, which has a byte for
    each one.
    """

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, _PIECES * PIECE))
        self._free, self._freed = os.pipe()
        os.write(self._freed, bytes(_PIECES))
        self._taken = 0

    def as_producer(self) -> None:
        """Close what is the consumer's."""
        os.close(self._freed)

    def as_consumer(self) -> None:
        """Close what is the producer's."""
        os.close(self._free)

    def take(self) -> int:
        """Return the offset of the next piece, once it is free or the consumer has closed."""
        os.read(self._free, 1)
        self._taken += 1
        return (self._taken - 1) % _PIECES * PIECE

    def free(self) -> None:
        """Free the piece that was taken first."""
        with contextlib.suppress(BrokenPipeError):  # the producer has ended
            os.write(self._freed, b"\0")

    def close(self) -> None:
        """Be a consumer that reads no more: the producer goes on without waiting."""
        os.close(self._freed)


class _Digest:
    """A SHA-256 that a thread computes, one piece at a time; hashlib releases the GIL meanwhile."""

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
        self, layer: Layer, most_ratio: int, ring: Ring, piece_done: Callable[[], None], pipe: int
    ) -> None:
        """`piece_done` is called when a piece has been read; `pipe`: closed in a child process."""
        self._layer, self._ring, self._piece_done = layer, ring, piece_done
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
        """Yield begin and end in the ring of the next bytes. Raises `Damaged`, `Refused`."""
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
            self._piece_done()
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
    """Return a function that fills memory with the next uncompressed bytes, and says how many.

    Less than all at the end only.
    """
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
    child = ChildProcess(work)
    ended = False

    def fill(memory: memoryview) -> int:
        nonlocal ended
        done = 0
        while not ended and done < len(memory):
            made = os.readv(child.file.fileno(), [memory[done:]])
            done += made
            if not made:
                ended = True
                refused = child.refusal()
                if refused is not None:
                    raise refused
        return done

    return fill


def _unzip(layer: Layer, pipe: int, writing: int) -> None:
    os.close(pipe)  # its reader sees the end once the process that writes to it closes it
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
