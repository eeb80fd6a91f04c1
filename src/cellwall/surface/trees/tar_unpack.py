"""Unpacks a tar stream from hostile code into a directory of the caller's.

It is not `tarfile.extract`: the other side chooses all names, links, devices, sizes and counts.
Only regular files and directories are made, every component is opened below a directory descriptor
without following links, and both bytes and entries are capped. The invariant: nothing outside the
target directory is ever opened, and nothing that exists is overwritten.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cellwall.model.errors import Conflict, FileError

_BLOCK = 512
_MOST_ENTRIES = 200_000
_MOST_DEPTH = 128
_MOST_EXTENSION_BYTES = 64 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _refused(message: str) -> FileError:
    return FileError(
        f"download_dir: {message}", reason="invalid", remedy="read single files instead"
    )


class Arrival:
    """A push parser of ustar with GNU and pax long names; feed it pieces of any size."""

    def __init__(self, target: Path, most_bytes: int) -> None:
        """Make `target`, which must not hold anything yet."""
        target.mkdir(parents=True, exist_ok=True)
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if os.listdir(self._root):
            os.close(self._root)
            raise Conflict(
                f"download_dir: {target} is not empty", remedy="name a new or empty directory"
            )
        self._room = most_bytes
        self._buffer = bytearray()
        self._left = 0
        self._padding = 0
        self._out = -1
        self._extension: str | None = None
        self._extension_data = bytearray()
        self._name: str | None = None
        self._size: int | None = None
        self._entries = 0
        self._files = 0
        self._is_over = False
        self.skipped = 0
        """Number of links, devices and other things that were left out."""

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        self._buffer += data
        while not self._is_over and self._step():
            pass
        if self._is_over:
            self._buffer.clear()

    def _step(self) -> bool:
        """Do what the buffer allows; return whether anything was done."""
        if self._left:
            piece = bytes(self._buffer[: self._left])
            if not piece:
                return False
            del self._buffer[: len(piece)]
            self._left -= len(piece)
            self._take(piece)
            if not self._left:
                self._end_entry()
            return True
        if self._padding:
            skipped = min(self._padding, len(self._buffer))
            del self._buffer[:skipped]
            self._padding -= skipped
            return skipped > 0
        if len(self._buffer) < _BLOCK:
            return False
        block = bytes(self._buffer[:_BLOCK])
        del self._buffer[:_BLOCK]
        self._begin_entry(block)
        return True

    def _begin_entry(self, block: bytes) -> None:
        if not any(block):
            self._is_over = True
            return
        kind, size = block[156:157], _number(block[124:136])
        self._entries += 1
        if self._entries > _MOST_ENTRIES:
            raise _refused(f"more than {_MOST_ENTRIES} entries")
        if kind in (b"L", b"K", b"x", b"g"):
            if size > _MOST_EXTENSION_BYTES:
                raise _refused("an extended header is too long")
            self._extension = kind.decode()
            self._extension_data.clear()
        else:
            size = self._begin_file(block, kind, size)
        self._left = size
        self._padding = -size % _BLOCK
        if not size:
            self._end_entry()

    def _begin_file(self, block: bytes, kind: bytes, size: int) -> int:
        name, self._name = self._name or _block_name(block), None
        size, self._size = size if self._size is None else self._size, None
        if kind not in (b"0", b"\0", b"5"):
            self.skipped += 1
            return 0 if kind in (b"1", b"2", b"3", b"4", b"6") else size
        parts = _check_name(name)
        if kind == b"5":
            self._directory(parts)
            return 0
        self._room -= size
        if self._room < 0:
            raise FileError(
                "download_dir: more bytes than allowed",
                reason="too_large",
                remedy="raise most_bytes",
            )
        if not parts:
            raise _refused("a file without a name")
        self._open(parts, _number(block[100:108]))
        return size

    def _open(self, parts: list[str], mode: int) -> None:
        directory = self._directory(parts[:-1], keep=True)
        try:
            # Of the mode only "executable" is believed.
            self._out = os.open(
                parts[-1], _NEW_FILE, 0o755 if mode & 0o100 else 0o644, dir_fd=directory
            )
        except FileExistsError:
            raise _refused(f"{'/'.join(parts)!r} comes twice") from None
        except OSError as error:  # the caller's disk is full, or the name is impossible here
            raise _refused(f"{'/'.join(parts)!r}: {error.strerror}") from None
        finally:
            os.close(directory)
        self._files += 1

    def _directory(self, parts: list[str], *, keep: bool = False) -> int:
        """Open (and make) a directory below the root, component by component."""
        current = os.dup(self._root)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=current)
                below = os.open(part, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = below
        except OSError as error:  # a file, or a link that another process made, is in the way
            os.close(current)
            raise _refused(f"{'/'.join(parts)!r}: {error.strerror}") from None
        if not keep:
            os.close(current)
            return -1
        return current

    def _take(self, piece: bytes) -> None:
        if self._extension is not None:
            self._extension_data += piece
        elif self._out >= 0:
            view = memoryview(piece)
            while view:
                try:
                    view = view[os.write(self._out, view) :]
                except OSError as error:
                    raise _refused(f"write: {error.strerror}") from None

    def _end_entry(self) -> None:
        if self._out >= 0:
            os.close(self._out)
            self._out = -1
        kind, self._extension = self._extension, None
        if kind == "L":
            self._name = self._extension_data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif kind == "x":
            self._read_pax(bytes(self._extension_data))

    def _read_pax(self, data: bytes) -> None:
        while data:
            digits, _, _ = data.partition(b" ")
            # More digits than the length of all records has are refused, even if zeros lead.
            if not digits.isdigit() or len(digits) > len(str(_MOST_EXTENSION_BYTES)):
                raise _refused("a broken extended header")
            length = int(digits)
            if not len(digits) < length <= len(data):
                raise _refused("a broken extended header")
            record = data[len(digits) + 1 : length - 1]
            data = data[length:]
            key, _, value = record.partition(b"=")
            if key == b"path":
                self._name = value.decode("utf-8", "surrogateescape")
            elif key == b"size":
                if not value.isdigit() or len(value) > 15:
                    raise _refused("a broken size")
                self._size = int(value)

    def finish(self) -> int:
        """Check that the stream was complete; return the number of files."""
        if self._left or not self._is_over:
            raise _refused("the stream ended too early")
        return self._files

    def close(self) -> None:
        """Close descriptors; idempotent."""
        for fd in (self._out, self._root):
            if fd >= 0:
                os.close(fd)
        self._out = self._root = -1


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU base 256, for sizes above 8 GiB
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    else:
        text = field.strip(b"\0 ")
        if text and not all(48 <= digit < 56 for digit in text):
            raise _refused("a broken number")
        value = int(text or b"0", 8)
    if value > 1 << 50:
        raise _refused("an impossible size")
    return value


def _block_name(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    if block[257:262] == b"ustar" and block[263:265] == b"00":
        prefix = block[345:500].partition(b"\0")[0]
        name = prefix + b"/" + name if prefix else name
    return name.decode("utf-8", "surrogateescape")


def _check_name(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or len(parts) > _MOST_DEPTH:
        raise _refused(f"the name {name[:80]!r} leads elsewhere")
    return parts
