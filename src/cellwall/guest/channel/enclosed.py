"""What a program's request brings in its body, behind the source: files, then stdin.

Used by contexts, before any code of a caller's runs; the host (`engine/programs/oneshot.py`) puts
it there where it is small. So a program with files and stdin costs no further message. Header
fields: `files` is a list of pairs, a path relative to the working directory and a size in bytes;
`stdin_bytes` is the size of stdin.
"""

from __future__ import annotations

import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cellwall.guest.channel.frames import Header

NOT_PLACED = struct.Struct("=4sII")
"""A context's last word to the host if it could not write a file: tag, errno, index of the file. It
ends then, and the program has not begun."""
NOT_PLACED_TAG = b"F\0\0\0"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class NotPlaced(Exception):
    """A file could not be written."""

    def __init__(self, error: OSError, index: int) -> None:
        """`index`: which one of the list."""
        super().__init__(str(error))
        self.word = NOT_PLACED.pack(NOT_PLACED_TAG, error.errno or errno.EIO, index)


def place_files(header: Header, body: bytes) -> bytes:
    """Write the files of a request; return the rest of its body. Raises NotPlaced."""
    files = header.get("files")
    if not files:
        return body
    end = at = len(body) - sum(size for _, size in files)
    for index, (path, size) in enumerate(files):
        try:
            _place(path, body[at : at + size])
        except OSError as error:
            raise NotPlaced(error, index) from None
        at += size
    return body[:end]


def _place(path: str, data: bytes) -> None:
    folder = os.path.dirname(path)
    if folder:
        try:
            os.makedirs(folder, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    file = os.open(path, _NEW_FILE, 0o644)
    try:
        _write_all(file, data)
    finally:
        os.close(file)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def take_stdin(header: Header, body: bytes) -> tuple[bytes, int]:
    """Return the rest of the body, and a descriptor to read stdin from. Raises OSError."""
    end = len(body) - int(header["stdin_bytes"])
    return body[:end], filled_pipe(body[end:])


def filled_pipe(data: bytes) -> int:
    """Return the reading end of a pipe that holds `data` and then ends. Raises OSError.

    A pipe of a user who has many is small, pipe(7); data that does not fit is in a file instead.
    """
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        is_whole = not data or os.write(writing, data) == len(data)
    except BlockingIOError:
        is_whole = False
    finally:
        os.close(writing)
    if is_whole:
        return reading
    os.close(reading)
    file = os.memfd_create("stdin")
    _write_all(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return file
