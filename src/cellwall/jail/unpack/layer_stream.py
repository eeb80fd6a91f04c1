"""One layer as a stream of its members: decompressed, digested and read in processes beside ours.

OCI image specification 1.1, `layer.md`. That takes longer than writing the files does, and a host
has more than one CPU. All of them are locked down alike. The invariant: `close` says that a layer
is whole only if its bytes have its digest.

The pipe to the process that writes files has, for each member, four bytes with a length, the member
by `marshal` in so many, and then the content of a file.
"""

from __future__ import annotations

import _thread
import fcntl
import hashlib
import marshal
import os
import zlib
from typing import Callable, Iterator, List, NamedTuple, Optional

from cellwall.jail.unpack.tar_stream import Damaged, Member, TarStream

_PIECE = 1 << 20
_SMALL = 128 << 10
"""Content below this is sent together with what comes next."""
_F_SETPIPE_SZ = 1031
_MOST_SAID = 1000
_LENGTH = 4
_FREE_BYTES = 64 << 20
"""Bytes that a layer may have whatever its compression ratio."""
_WHOLE = "whole"


class Refused(Exception):
    """A layer is not what the specification says, or beyond a bound; `code` says which."""

    def __init__(self, message: str, code: str = "invalid") -> None:
        """`code`: `invalid`, `bound`, `unsupported`, or `ids` for one that is not mapped here."""
        super().__init__(message)
        self.code = code


class Layer(NamedTuple):
    """One layer: part of an open file."""

    file: int
    diff_id: str
    compression: str
    """`gzip`, `none`, or another that is refused."""
    offset: int
    size: int


class _Beside:
    """A process beside this one, which writes to a pipe and tells at its end what was wrong."""

    def __init__(self, work: Callable[[int], None]) -> None:
        """`work` writes to a descriptor that it closes; it may raise `Refused`."""
        reading, writing = os.pipe()
        self._verdict, told = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _end(work, writing, told)
        os.close(writing)
        os.close(told)
        fcntl.fcntl(reading, _F_SETPIPE_SZ, _PIECE)
        self.file = open(reading, "rb", buffering=_PIECE)  # noqa: SIM115 - closed in `wrong`

    def wrong(self) -> Optional[Refused]:
        """Read nothing more; return what was wrong once the process has ended."""
        self.file.close()
        with open(self._verdict, "rb") as file:
            code, _, said = file.read(_MOST_SAID).decode("utf-8", "replace").partition(" ")
        os.waitpid(self._pid, 0)
        if code == _WHOLE:
            return None
        return Refused(said or "the process that reads a layer was killed", code or "bound")


def _end(work: Callable[[int], None], writing: int, told: int) -> None:
    """Do the work of such a process, and tell how it went; never return."""
    try:
        work(writing)
        said = f"{_WHOLE} "
    except Refused as refusal:
        said = f"{refusal.code} {refusal}"
    except Exception as error:  # noqa: BLE001 - the parent tells it
        said = f"invalid a layer cannot be read: {error}"
    os.write(told, said.encode("utf-8", "replace")[:_MOST_SAID])
    os._exit(0)


class LayerStream:
    """The members of a layer; they just end if there is anything wrong with its bytes."""

    def __init__(self, layer: Layer, most_ratio: int) -> None:
        """`most_ratio`: most bytes for each byte compressed, beyond the first 64 MiB."""
        self._beside = _Beside(lambda out: _send(_Bytes(layer, most_ratio), out))
        self._file = self._beside.file
        self._left = 0

    def __iter__(self) -> Iterator[Member]:
        """Yield each member; `content` is of the one that was yielded last."""
        read = self._file.read
        while len(size := read(_LENGTH)) == _LENGTH:
            told = read(int.from_bytes(size, "little"))
            try:
                member = Member(*marshal.loads(told))  # noqa: S302 - by ourselves, in this jail
            except (EOFError, ValueError, TypeError):
                return  # it ended in the middle
            self._left = member.size if member.kind == "file" else 0
            yield member
            for _ in self.content():
                pass

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the file at hand, in pieces of at most 1 MiB."""
        while self._left:
            piece = self._file.read(min(self._left, _PIECE))
            if not piece:
                return
            self._left -= len(piece)
            yield piece

    def close(self) -> Optional[Refused]:
        """Return what is wrong with the bytes, all of them, whether their members were read or not.

        Nothing can be read any more.
        """
        return self._beside.wrong()


def _send(source: _Bytes, writing: int) -> None:
    """Write the members of a layer. Raises `Refused`, for what is wrong with its bytes first."""
    try:
        _send_members(TarStream(source.read), _Out(writing))
    except BrokenPipeError:
        pass  # the other process has found something wrong, and awaits what we say of the bytes
    except (Damaged, OverflowError, UnicodeError) as error:
        source.check()
        raise Refused(f"a layer is no tar: {str(error)[:200]}") from None
    finally:
        os.close(writing)
    source.check()


def _send_members(tar: TarStream, out: _Out) -> None:
    for member in tar:
        told = marshal.dumps(tuple(member))
        out.add(len(told).to_bytes(_LENGTH, "little") + told)
        if member.kind == "file":
            for piece in tar.content():
                out.add(piece)
    out.flush()


class _Out:
    """A pipe to which small pieces go together."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._waiting: List[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._waiting.append(piece)
        self._size += len(piece)
        if self._size >= _SMALL:
            self.flush()

    def flush(self) -> None:
        left = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        self._size = 0
        while left:
            left = left[os.write(self._file, left) :]


class _Digest:
    """A SHA-256 by a thread of its own, which needs no lock of the interpreter's meanwhile."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()
        self._idle = _thread.allocate_lock()

    def update(self, piece: bytes) -> None:
        self._idle.acquire()
        _thread.start_new_thread(self._add, (piece,))

    def _add(self, piece: bytes) -> None:
        try:
            self._sum.update(piece)
        finally:
            self._idle.release()

    def found(self) -> str:
        with self._idle:
            return f"sha256:{self._sum.hexdigest()}"


class _Bytes:
    """The uncompressed bytes of a layer, with their digest so far."""

    def __init__(self, layer: Layer, most_ratio: int) -> None:
        self._layer = layer
        self._most = max(_FREE_BYTES, layer.size * most_ratio)
        self._pieces = _raw(layer)
        self._digest, self._made = _Digest(), 0
        self._piece, self._at = b"", 0

    def read(self, size: int) -> bytes:
        """Return the next bytes; less than `size` at the end only. Raises `Refused`."""
        end = self._at + size
        found = self._piece[self._at : end]
        self._at = end
        if len(found) == size:
            return found
        parts, missing = [found], size - len(found)
        while missing and self._next():
            parts.append(self._piece[:missing])
            self._at = len(parts[-1])
            missing -= self._at
        return b"".join(parts)

    def _next(self) -> bool:
        """Go on to the next piece; False at the end."""
        self._piece, self._at = next(self._pieces, b""), 0
        self._made += len(self._piece)
        if self._made > self._most:
            raise Refused("a layer is larger than its compressed size allows", "bound")
        self._digest.update(self._piece)
        return bool(self._piece)

    def check(self) -> None:
        """Read what is left; raise `Refused` unless it all has the layer's digest."""
        while self._next():
            pass
        if self._digest.found() != self._layer.diff_id:
            raise Refused(f"a layer has another digest than {self._layer.diff_id}")


def _raw(layer: Layer) -> Iterator[bytes]:
    if layer.compression == "none":
        yield from _stored(layer)
    elif layer.compression == "gzip":
        # The most work of all, so it has a process of its own.
        yield from _made_beside(lambda: _unzipped(_stored(layer)))
    else:
        raise Refused(f"a layer is compressed with {layer.compression}", "unsupported")


def _made_beside(make: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Yield what another process makes. Raises `Refused`."""

    def pour(writing: int) -> None:
        out = _Out(writing)
        for piece in make():
            out.add(piece)
        out.flush()
        os.close(writing)

    beside = _Beside(pour)
    while piece := os.read(beside.file.fileno(), _PIECE):
        yield piece
    refused = beside.wrong()
    if refused is not None:
        raise refused


def _stored(layer: Layer) -> Iterator[bytes]:
    at, end = layer.offset, layer.offset + layer.size
    while at < end:
        piece = os.pread(layer.file, min(_PIECE, end - at), at)
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
                made = unzip.decompress(data, _PIECE)
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
