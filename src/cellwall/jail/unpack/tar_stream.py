"""The members of a tar, read once from its beginning to its end.

POSIX.1-2017, `pax`, with what GNU tar adds: long names, numbers in base 256, sparse files. Python's
`tarfile` took more than half of the time of unpacking (`design/0034`), so only sparse files, which
hardly any layer has, are left to it. Unlike other readers this one takes no damaged header for the
end of the tar: half a layer would pass for a whole one.
"""

from __future__ import annotations

import struct
import tarfile
import zlib
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

_BLOCK = 512
_PIECE = 1 << 20
_END = bytes(_BLOCK)
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_ADLER = 65_521
_SPACES = 8 * ord(" ")
"""What the field of the checksum itself counts for."""
_MOST_EXTENDED = 1 << 20
"""Most bytes of one extended header; Go's `archive/tar`, by which Docker reads layers, has this."""
_POSIX = b"ustar\0"
_REGULAR, _OLD, _CONTIGUOUS, _GNU_SPARSE = b"0", b"\0", b"7", b"S"
_HARD_LINK, _SYMBOLIC_LINK, _DIRECTORY, _FIFO = b"1", b"2", b"5", b"6"
_WITHOUT_CONTENT = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})
_SPARSE_KEY = b"GNU.sparse."
_GNU_LONG = {b"L": "path", b"K": "linkpath"}
_EXTENDED = frozenset({b"x", b"X", b"g", *_GNU_LONG})
_NS = 10**9
_LAST_NS = 1 << 62

Read = Callable[[int], bytes]


class Damaged(ValueError):
    """This is no tar, or not a whole one."""


class Member(NamedTuple):
    """One member; `kind` is `file`, `directory`, `link`, `hard link`, `fifo` or `other`."""

    name: str
    """As it is written, undecodable bytes as surrogates (PEP 383)."""
    kind: str
    mode: int
    """Permission bits, with those of set-uid, set-gid and sticky."""
    uid: int
    gid: int
    size: int
    """Bytes of the file; of anything else it says nothing."""
    mtime_ns: int
    """Nanoseconds since the epoch, from 0 to 2^62."""
    link: str
    """Where a link leads."""
    attributes: bool
    """Whether it has extended attributes (xattr(7))."""


_KINDS = {
    _REGULAR: "file",
    _OLD: "file",
    _CONTIGUOUS: "file",
    _HARD_LINK: "hard link",
    _SYMBOLIC_LINK: "link",
    _DIRECTORY: "directory",
    _FIFO: "fifo",
    _GNU_SPARSE: "file",
}


class TarStream:
    """A tar that is read from its beginning to its end."""

    def __init__(self, read: Read) -> None:
        """`read` returns the next bytes; less than it is asked for at the end only."""
        self._read = read
        self._left = 0
        """Bytes of the member at hand that have not been read, with its padding."""
        self._content = 0
        """Bytes of its content that have not been read."""
        self._everywhere: Dict[str, str] = {}
        self._sparse: Optional[_SparseFile] = None

    def __iter__(self) -> Iterator[Member]:
        """Yield each member; `content` is of the one that was yielded last. Raises `Damaged`."""
        number = 0
        while True:
            self._skip()
            found = self._next(is_first=number == 0)
            if found is None:
                return
            number += 1
            yield found

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the file at hand, in pieces of at most 1 MiB. Raises `Damaged`."""
        if self._sparse is not None:
            yield from self._sparse.content()
            return
        while self._content:
            piece = self._read(min(self._content, _PIECE))
            if not piece:
                raise Damaged("it ends in the middle of a file")
            self._content -= len(piece)
            self._left -= len(piece)
            yield piece

    def hand_over(self) -> int:
        """Return how many bytes of the file at hand come next: its content, which the caller reads.

        0 of a sparse file, whose `content` is made of what is stored.
        """
        size, self._content = self._content, 0
        self._left -= size
        return size

    def _skip(self) -> None:
        """Read what is left of the member at hand."""
        self._content = 0
        if self._sparse is not None:
            self._left, self._sparse = self._sparse.left(), None
        while self._left:
            piece = self._read(min(self._left, _PIECE))
            if not piece:
                raise Damaged("it ends in the middle of a file")
            self._left -= len(piece)

    def _next(self, *, is_first: bool) -> Optional[Member]:
        """Return the next member, None at the end."""
        own: Dict[str, str] = {}
        blocks: List[bytes] = []
        while True:
            block = self._read(_BLOCK)
            if not block and not is_first and not blocks:
                return None  # without the blocks that end a tar: some writers forget them
            if block == _END and not blocks:
                return None
            fields = _checked(block)
            if fields[7] not in _EXTENDED:
                break
            data = self._extended(_number(fields[4]))
            blocks += (block, data)
            self._take_extended(fields[7], data, own)
        words = {**self._everywhere, **own} if self._everywhere else own
        member = _member(fields, words)
        if fields[7] == _GNU_SPARSE or any(_SPARSE_KEY in each for each in blocks):
            self._sparse = _SparseFile(self._read, b"".join([*blocks, block]))
            name, size = self._sparse.name, self._sparse.size
            return member._replace(name=name, size=size, kind="file")
        self._content = 0 if fields[7] in _WITHOUT_CONTENT else member.size
        self._left = _padded(self._content)
        return member

    def _extended(self, size: int) -> bytes:
        if not 0 <= size <= _MOST_EXTENDED:
            raise Damaged(f"it has an extended header of {size} bytes")
        data = self._read(_padded(size))
        if len(data) < size:
            raise Damaged("it ends in the middle of a header")
        return data

    def _take_extended(self, kind: bytes, data: bytes, own: Dict[str, str]) -> None:
        if kind in _GNU_LONG:
            own[_GNU_LONG[kind]] = _text(data)
        else:
            (self._everywhere if kind == b"g" else own).update(_records(data))


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _checked(block: bytes) -> Tuple[bytes, ...]:
    """Return the fields of a header."""
    if len(block) < _BLOCK:
        raise Damaged("it ends in the middle of a header" if block else "it is empty")
    fields = _HEADER.unpack(block)
    # The lower half of Adler-32 is the sum of the bytes and 1, modulo 65,521 (RFC 1950). It takes a
    # tenth of the time of `sum`.
    said = _number(fields[6]) - _SPACES + sum(fields[6]) + 1
    if zlib.adler32(block) & 0xFFFF != said % _ADLER:
        raise Damaged("it has a damaged header")
    return fields


def _member(fields: Tuple[bytes, ...], words: Dict[str, str]) -> Member:
    (name, mode, uid, gid, size, mtime, _sum, kind, link, magic, *_, prefix) = fields
    found = Member(
        f"{_text(prefix)}/{_text(name)}" if magic == _POSIX and prefix[0] else _text(name),
        _KINDS.get(kind, "other"),
        _number(mode) & 0o7777,
        _number(uid),
        _number(gid),
        _number(size),
        max(0, min(_number(mtime) * _NS, _LAST_NS)),
        _text(link),
        False,
    )
    if words:
        found = _amended(found, words)
    if kind == _OLD and found.name.endswith("/"):
        found = found._replace(kind="directory")  # as before POSIX
    if found.size < 0:
        raise Damaged("it has a file of less than no bytes")
    return found


def _amended(found: Member, words: Dict[str, str]) -> Member:
    """Have the records of extended headers replace what the header says."""
    mtime_ns = found.mtime_ns
    if "mtime" in words:
        seconds, _, part = words["mtime"].partition(".")
        mtime_ns = max(0, min(_int(seconds) * _NS + _int(f"{part:0<9.9}"), _LAST_NS))
    return Member(
        words.get("path", found.name),
        found.kind,
        found.mode,
        _int(words["uid"]) if "uid" in words else found.uid,
        _int(words["gid"]) if "gid" in words else found.gid,
        _int(words["size"]) if "size" in words else found.size,
        mtime_ns,
        words.get("linkpath", found.link),
        any(key.startswith("SCHILY.xattr.") for key in words),
    )


def _number(field: bytes) -> int:
    """Return a number: octal digits, or the bytes themselves behind a mark (GNU)."""
    try:
        return int(field.rstrip(b"\0"), 8)
    except ValueError:  # it is not the usual one
        pass
    if field[0] & 0x80:
        number = int.from_bytes(field[1:], "big")
        return number - (1 << 8 * len(field) - 8) if field[0] == 0xFF else number
    return _int(field.partition(b"\0")[0].strip() or b"0", 8)


def _int(digits: Union[bytes, str], base: int = 10) -> int:
    try:
        return int(digits, base)
    except ValueError:
        raise Damaged("it has a damaged header") from None


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _records(data: bytes) -> Dict[str, str]:
    """Return the records of an extended header: each is `length key=value` and a line's end."""
    found: Dict[str, str] = {}
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 20)
        end = at + _int(data[at:space]) if space > at else 0
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not (space < end <= len(data) and key and equals and data[end - 1] == ord("\n")):
            raise Damaged("it has a damaged extended header")
        found[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        at = end
    return found


class _SparseFile:
    """A file that is stored without its holes, in one of GNU tar's four ways; `tarfile` knows them.

    It reads by blocks, so what it has read is never beyond the member.
    """

    def __init__(self, read: Read, before: bytes) -> None:
        self._read, self._before, self._given = read, before, 0
        try:
            self._tar = tarfile.open(fileobj=self, mode="r|", bufsize=_BLOCK)  # type: ignore[call-overload] # noqa: SIM115 - ends with the file
            found = self._tar.next()
        except (tarfile.TarError, ValueError) as error:
            raise Damaged(f"it has a damaged header ({error})") from None
        if found is None or not found.isreg():
            raise Damaged("it has a damaged header of a sparse file")
        self._info = found
        self.name, self.size = found.name, found.size

    def read(self, size: int) -> bytes:
        """Return the member's headers, and then what is behind them."""
        given, self._before = self._before[:size], self._before[size:]
        given += self._read(size - len(given))
        self._given += len(given)
        return given

    def content(self) -> Iterator[bytes]:
        """Yield the content, holes as zeros."""
        source = self._tar.extractfile(self._info)
        try:
            while source is not None and (piece := source.read(_PIECE)):
                yield piece
        except (tarfile.TarError, ValueError) as error:
            raise Damaged(f"it ends in the middle of a file ({error})") from None

    def left(self) -> int:
        """Return the number of bytes before the next header."""
        return self._tar.offset - self._given  # type: ignore[no-any-return] # typeshed: Any
