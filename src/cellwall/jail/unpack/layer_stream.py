"""One layer as a stream of its members, which a child process reads.

OCI image specification 1.1, `layer.md`. The layer's bytes lie in memory that both processes share
(`layer_bytes`). For each piece of that memory the child sends one message, four bytes with its
length and a list of events by `marshal`: a member as a tuple, begin and end of some of its content
in that memory, content itself where it does not lie there (holes of sparse files), and None at the
end, when the piece is free. The invariant: `close` returns None only if the layer's bytes have its
digest.
"""

from __future__ import annotations

import marshal
import os
from typing import Any, Iterator, List, Optional

from cellwall.jail.unpack.child_process import ChildProcess, Refused, write_all
from cellwall.jail.unpack.layer_bytes import PIECE, Layer, LayerBytes, Ring
from cellwall.jail.unpack.tar_stream import Damaged, Member, TarStream

_LENGTH = 4


class LayerStream:
    """The members of a layer. They end early if its bytes are not right, which `close` tells."""

    def __init__(self, layer: Layer, most_ratio: int) -> None:
        """`most_ratio`: most bytes for each byte compressed, beyond the first 64 MiB."""
        self._ring = Ring()
        self._child = ChildProcess(lambda out: _send(layer, most_ratio, self._ring, out))
        self._ring.as_consumer()
        self._events = self._received()
        self._left = 0

    def __iter__(self) -> Iterator[Member]:
        """Yield each member; `content` is of the one that was yielded last."""
        for event in self._events:
            member = Member(*event)
            self._left = member.size if member.kind == "file" else 0
            yield member
            for _ in self.content():
                pass

    def content(self) -> Iterator[memoryview]:
        """Yield the bytes of the file at hand, in pieces of at most 1 MiB, valid until the next."""
        while self._left:
            event = next(self._events, None)
            if event is None:
                return
            piece = memoryview(event) if isinstance(event, bytes) else self._at(*event)
            self._left -= len(piece)
            yield piece

    def _at(self, begin: int, end: int) -> memoryview:
        return self._ring.memory[begin:end]

    def _received(self) -> Iterator[Any]:
        """Yield members, places and contents until the child process ends, also by an error."""
        read = self._child.file.read
        while len(size := read(_LENGTH)) == _LENGTH:
            try:
                events = marshal.loads(read(int.from_bytes(size, "little")))  # noqa: S302 - our own child in the same jail wrote it
            except (EOFError, ValueError, TypeError):
                return
            for event in events:
                if event is None:
                    self._ring.free()
                else:
                    yield event

    def close(self) -> Optional[Refused]:
        """Return what is wrong with the bytes, all of them, whether their members were read or not.

        Nothing can be read any more.
        """
        self._ring.close()
        return self._child.refusal()


def _send(layer: Layer, most_ratio: int, ring: Ring, writing: int) -> None:
    """Write the members of a layer. Raises `Refused`, for what is wrong with its bytes first."""
    ring.as_producer()
    out = _Out(writing)
    source = LayerBytes(layer, most_ratio, ring, out.piece_done, writing)
    try:
        _send_members(TarStream(source.read), source, out)
    except BrokenPipeError:
        pass  # the parent has refused a member, and waits for the verdict on the bytes
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
    """The events of a layer, sent in one message for each piece."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._waiting: List[object] = []
        self._size = 0

    def add(self, event: object, size: int = 0) -> None:
        self._waiting.append(event)
        self._size += size
        if self._size >= PIECE:
            self.flush()

    def flush(self) -> None:
        if self._file < 0 or not self._waiting:
            return
        message = marshal.dumps(self._waiting)
        self._waiting.clear()
        self._size = 0
        write_all(self._file, len(message).to_bytes(_LENGTH, "little") + message)

    def piece_done(self) -> None:
        """Send all events of a piece, which is free after them."""
        self.add(None)
        self.flush()

    def close(self) -> None:
        """Send no more events."""
        os.close(self._file)
        self._file = -1
        self._waiting.clear()
