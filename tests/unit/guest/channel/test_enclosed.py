"""What comes in the body of a program's request: its files, and its stdin."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.guest.channel import enclosed

_PIPE_BYTES = 64 * 1024


@pytest.fixture(autouse=True)
def _in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _read(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


@pytest.mark.parametrize("data", [b"", b"x", b"y" * _PIPE_BYTES])
def test_stdin_is_a_pipe_that_ends(data: bytes) -> None:
    rest, descriptor = enclosed.take_stdin({"stdin_bytes": len(data)}, b"source" + data)
    assert rest == b"source"
    assert stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    assert _read(descriptor) == data


@pytest.mark.parametrize("size", [_PIPE_BYTES + 1, 1 << 20])
def test_stdin_that_a_pipe_has_no_room_for_is_a_file(size: int) -> None:
    descriptor = enclosed.filled_pipe(b"x" * size)
    assert stat.S_ISREG(os.fstat(descriptor).st_mode)
    assert _read(descriptor) == b"x" * size


def test_stdin_leaves_no_descriptor_but_its_own() -> None:
    before = os.listdir("/proc/self/fd")
    for size in (0, 1, 1 << 20):
        os.close(enclosed.filled_pipe(bytes(size)))
    assert os.listdir("/proc/self/fd") == before


def test_files_are_written_in_order_and_folders_made() -> None:
    header = {"files": [("a", 2), ("b/c/d", 0), ("./a", 3), ("b/e", 1)]}
    assert enclosed.place_files(header, b"source" + b"12" + b"" + b"345" + b"6") == b"source"
    found = {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert found == {"a": b"345", "b/c/d": b"", "b/e": b"6"}


@pytest.mark.parametrize("header", [{}, {"files": None}, {"files": []}])
def test_request_without_files_is_its_source(header: dict[str, object]) -> None:
    assert enclosed.place_files(header, b"source") == b"source"


@pytest.mark.parametrize(
    ("paths", "number"),
    [
        (("a", "a/b"), errno.ENOTDIR),
        (("a", "a/b/c"), errno.ENOTDIR),
        (("a/b", "a"), errno.EISDIR),
        (("a", "x" * 300), errno.ENAMETOOLONG),
    ],
)
def test_file_that_cannot_be_written_is_named_by_its_place(
    paths: tuple[str, ...], number: int
) -> None:
    with pytest.raises(enclosed.NotPlaced) as raised:
        enclosed.place_files({"files": [(path, 0) for path in paths]}, b"source")
    assert enclosed.NOT_PLACED.unpack(raised.value.word) == (enclosed.NOT_PLACED_TAG, number, 1)


def _one_byte_at_a_time(write: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    return lambda file, data: write(file, data[:1])


def test_file_is_whole_if_the_kernel_takes_it_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", _one_byte_at_a_time(os.write))
    enclosed.place_files({"files": [("a", 5)]}, b"12345")
    assert Path("a").read_bytes() == b"12345"
