"""Files in memory whose content goes to a guest: nobody changes them, and none is left open."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable

import pytest

from cellwall.runtimes.channel.sealed_files import SealedFile

CONTENT = os.urandom(3_000_001)


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _write_anew(fd: int) -> None:
    other = os.open(_path(fd), os.O_WRONLY)
    try:
        os.write(other, b"x")
    finally:
        os.close(other)


CHANGES: dict[str, Callable[[int], object]] = {
    "written": lambda fd: os.pwrite(fd, b"x", 0),
    "longer": lambda fd: os.ftruncate(fd, len(CONTENT) + 1),
    "shorter": lambda fd: os.ftruncate(fd, 1),
    "mapped": lambda fd: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    "written by another descriptor": _write_anew,
}


def test_content_is_whole() -> None:
    file = SealedFile(CONTENT)
    assert len(file) == len(CONTENT)
    assert bytes(file) == CONTENT
    assert bytes(file) == CONTENT  # its offset is nobody's


@pytest.mark.parametrize("change", CHANGES)
def test_nobody_changes_it(change: str) -> None:
    """Several sandboxes get the same one."""
    file = SealedFile(CONTENT)
    with pytest.raises(PermissionError) as refused:
        CHANGES[change](file.fd)
    assert refused.value.errno == errno.EPERM
    assert bytes(file) == CONTENT


def test_plain_file_in_memory_is_changed() -> None:
    """The control: without seals each of these does something."""
    for change in CHANGES.values():
        fd = os.memfd_create("plain")
        try:
            os.write(fd, CONTENT)
            made = change(fd)
            if isinstance(made, mmap.mmap):
                made.close()
        finally:
            os.close(fd)


def test_file_is_closed_with_its_last_reference() -> None:
    file = SealedFile(CONTENT)
    node, used = os.fstat(file.fd).st_ino, [file]
    del file
    assert node in _open_files()
    used.clear()
    assert node not in _open_files()


def _open_files() -> set[int]:
    """Return the inodes of this process's files in memory."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor
            if "cellwall-sealed" in os.readlink(_path(int(each))):
                found.add(os.stat(_path(int(each))).st_ino)
    return found
