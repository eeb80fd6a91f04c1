"""What an interpreter of another language reads its sources from, with and without memfds."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from cellwall.guest.context.foreign import interpreter

_KEEPERS = {"pipe": interpreter._pipe, "nameless file": interpreter._nameless_file}


def _refuse(_name: str) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


def _content(fd: int) -> bytes:
    try:
        return Path(f"/proc/{os.getpid()}/fd/{fd}").read_bytes()
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 1 << 20])
@pytest.mark.parametrize("instead", sorted(_KEEPERS))
@pytest.mark.parametrize("is_refused", [False, True])
def test_what_is_kept_is_read_by_its_path(
    monkeypatch: pytest.MonkeyPatch, instead: str, size: int, *, is_refused: bool
) -> None:
    if is_refused:
        monkeypatch.setattr(os, "memfd_create", _refuse)
    before = len(os.listdir("/proc/self/fd"))
    data = os.urandom(size)
    assert _content(interpreter._kept(data, _KEEPERS[instead])) == data
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_read_once_takes_nothing_of_a_full_work_area(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "memfd_create", _refuse)
    monkeypatch.setattr(interpreter, "_nameless_file", full)
    assert _content(interpreter._kept(b"x" * 1000, interpreter._pipe)) == b"x" * 1000
    with pytest.raises(OSError, match="No space left"):
        interpreter._kept(b"x" * 100_000, interpreter._pipe)


def test_a_pipe_with_little_room_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives a page each to whoever has very many."""
    made = os.pipe

    def small() -> tuple[int, int]:
        read_end, write_end = made()
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        return read_end, write_end

    monkeypatch.setattr(os, "memfd_create", _refuse)
    monkeypatch.setattr(os, "pipe", small)
    data = os.urandom(10_000)
    assert _content(interpreter._kept(data, interpreter._pipe)) == data


def test_another_error_of_a_memfd_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", exhausted)
    with pytest.raises(OSError, match="Too many"):
        interpreter._kept(b"x", interpreter._pipe)
