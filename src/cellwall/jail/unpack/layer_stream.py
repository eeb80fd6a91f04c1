"""One layer as a stream of its members, which a process beside ours reads.

OCI image specification 1.1, `layer.md`. Its bytes lie in memory that both processes share
(`layer_bytes`). The pipe has for each piece of it what is in it, a list by `marshal` behind four
bytes with its length: members, places of their content as offsets, content itself if it lies
nowhere, None where a piece is free again. The invariant: `close` says that a layer is whole only if
its bytes have its digest.
"""

from __future__ import annotations

import marshal
import os
from typing import Any, Iterator, List, Optional

from cellwall.jail.unpack.beside import Beside, Refused, write_all
from cellwall.jail.unpack.layer_bytes import PIECE, Layer, LayerBytes, Ring
from cellwall.jail.unpack.tar_stream import Damaged, Member, TarStream

_LENGTH = 4


class LayerStream:
    """The members of a layer; they just end if there is anything wrong with its bytes."""

    def __init__(self, layer: Layer, most_ratio: int) -> None:
        """`most_ratio`: most bytes for each byte compressed, beyond the first 64 MiB."""
        self._ring = Ring()
        self._beside = Beside(lambda out: _send(layer, most_ratio, self._ring, out))
        self._ring.empty()
        self._told = self._all()
        self._left = 0

    def __iter__(self) -> Iterator[Member]:
        """Yield each member; `content` is of the one that was yielded last."""
        for told in self._told:
            member = Member(*told)
            self._left = member.size if member.kind == "file" else 0
            yield member
            for _ in self.content():
                pass

    def content(self) -> Iterator[memoryview]:
        """Yield the bytes of the file at hand, in pieces of at most 1 MiB, valid until the next."""
        while self._left:
            told = next(self._told, None)
            if told is None:
                return
            found = memoryview(told) if isinstance(told, bytes) else self._ring.memory[slice(*told)]
            self._left -= len(found)
            yield found

    def _all(self) -> Iterator[Any]:
        """Yield what the other process says of each piece, until it ends, maybe in the middle."""
        read = self._beside.file.read
        while len(size := read(_LENGTH)) == _LENGTH:
            try:
                told = marshal.loads(read(int.from_bytes(size, "little")))  # noqa: S302 - by ourselves, in this jail
            except (EOFError, ValueError, TypeError):
                return
            for each in told:
                if each is None:
                    self._ring.free()
                else:
                    yield each

    def close(self) -> Optional[Refused]:
        """Return what is wrong with the bytes, all of them, whether their members were read or not.

        Nothing can be read any more.
        """
        self._ring.close()
        return self._beside.wrong()


def _send(layer: Layer, most_ratio: int, ring: Ring, writing: int) -> None:
    """Write the members of a layer. Raises `Refused`, for what is wrong with its bytes first."""
    ring.fill()
    out = _Out(writing)
    source = LayerBytes(layer, most_ratio, ring, out.left, writing)
    try:
        _send_members(TarStream(source.read), source, out)
    except BrokenPipeError:
        pass  # the other process has found something wrong, and awaits what we say of the bytes
    except (Damaged, OverflowError, UnicodeError) as error:
        out.close()
        source.check()
        raise Refused(f"a layer is no tar: {str(error)[:200]}") from None
    out.close()
    source.check()


def _send_members(tar: TarStream, source: LayerBytes, out: _Out) -> None:
    for member in tar:
        out.add(tuple(member))
        if member.kind == "file":
            for place in source.places(tar.hand_over()):
                out.add(place)
            for piece in tar.content():
                out.add(piece, len(piece))
    out.flush()


class _Out:
    """What is said of the pieces, in few messages."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._waiting: List[object] = []
        self._size = 0

    def add(self, told: object, size: int = 0) -> None:
        self._waiting.append(told)
        self._size += size
        if self._size >= PIECE:
            self.flush()

    def flush(self) -> None:
        if self._file < 0 or not self._waiting:
            return
        told = marshal.dumps(self._waiting)
        self._waiting.clear()
        self._size = 0
        write_all(self._file, len(told).to_bytes(_LENGTH, "little") + told)

    def left(self) -> None:
        """Say that a piece is left, and all that was to say of it."""
        self.add(None)
        self.flush()

    def close(self) -> None:
        """Say nothing any more."""
        os.close(self._file)
        self._file = -1
        self._waiting.clear()
