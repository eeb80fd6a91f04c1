"""Access to files of control groups: writes raise an error that names the file, reads raise none.

SECURITY: no file is ever created, because a plain tmpfs takes every write silently.
"""

from __future__ import annotations

import os
from pathlib import Path

from cellwall.model.errors import HostUnsupported


def make_directory(path: str) -> None:
    """Make a cgroup."""
    try:
        os.mkdir(path)
    except OSError as error:
        raise HostUnsupported(
            "cgroups",
            f"make cgroup {path}: {error.strerror}",
            remedy="run `cellwall doctor`; it says whether cgroups can still be made here",
            errno=error.errno,
        ) from error


def open_for(path: str | Path, value: str) -> int:
    """Open a kernel file for writing `value`; never create one."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _not_written(path, value, error) from error


def write(path: str | Path, value: str) -> None:
    """Write to a file; raise if the kernel does not accept the value."""
    fd = open_for(path, value)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise _not_written(path, value, error) from error
    finally:
        os.close(fd)


def _not_written(path: str | Path, value: str, error: OSError) -> HostUnsupported:
    return HostUnsupported(
        f"cgroup {os.path.basename(path)}",
        f"write {value} to {path}: {error.strerror}",
        remedy="run `cellwall doctor`; it names a missing cgroup controller",
        errno=error.errno,
    )


def read(path: str) -> bytes:
    """Read a small kernel file; return nothing where it is missing. Every run uses it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_whole(path: str) -> bytes:
    """Read a kernel file of any size; nothing where it is missing."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def read_number(path: str) -> int:
    """Read a file with one number; 0 where it is missing or says `max`."""
    text = read(path).strip()
    return int(text) if text.isdigit() else 0


def read_counter(path: str, key: bytes) -> int:
    """Read a `key value` line of a counter file; 0 where file or key is missing."""
    for line in read(path).splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return int(value)
    return 0
