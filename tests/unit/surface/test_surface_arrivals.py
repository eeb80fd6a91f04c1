"""Tar streams from hostile code: only regular files and directories, only below the target."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.model.errors import CellwallError, Conflict, FileError
from cellwall.surface.trees import tar_unpack
from cellwall.surface.trees.tar_unpack import Arrival


def tar(*members: tuple[str, bytes, bytes], format_: int = tarfile.PAX_FORMAT) -> bytes:
    """Build a stream of (name, type, content or link target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format_) as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.mode = 0o6777
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = content.decode()
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def arrive(target: Path, data: bytes, step: int = 1000, most_bytes: int = 1 << 20) -> int:
    arrival = Arrival(target, most_bytes)
    try:
        for start in range(0, len(data), step):
            arrival.feed(data[start : start + step])
        return arrival.finish()
    finally:
        arrival.close()


FILE, DIRECTORY = tarfile.REGTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("step", [1, 511, 4096])
def test_arrival_writes_files_and_directories(tmp_path: Path, format_: int, step: int) -> None:
    name = "d/" + "n" * (90 if format_ == tarfile.USTAR_FORMAT else 200)
    data = tar(("d", DIRECTORY, b""), (name, FILE, b"x" * 1500), ("e", FILE, b""), format_=format_)
    assert arrive(tmp_path / "out", data, step) == 2
    assert (tmp_path / "out" / name).read_bytes() == b"x" * 1500
    assert (tmp_path / "out" / "e").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a/../x", "d/" * 200 + "x"])
def test_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError):
        arrive(tmp_path / "out", tar((name, FILE, b"x")))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    data = tar(
        ("link", tarfile.SYMTYPE, b"/etc"),
        ("hard", tarfile.LNKTYPE, b"link"),
        ("fifo", tarfile.FIFOTYPE, b""),
        ("device", tarfile.CHRTYPE, b""),
        ("file", FILE, b"kept"),
    )
    assert arrive(tmp_path / "out", data) == 1
    assert os.listdir(tmp_path / "out") == ["file"]


def test_link_of_a_third_party_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    arrival = Arrival(tmp_path / "out", 1 << 20)
    (tmp_path / "out" / "d").symlink_to(outside)
    with pytest.raises((FileError, OSError)):
        arrival.feed(tar(("d/x", FILE, b"x")))
    arrival.close()
    assert os.listdir(outside) == []


@pytest.mark.parametrize("record", [b"9" * 5000 + b" path=a\n", b"0" * 4990 + b"11 path=a\n"])
def test_length_of_a_record_that_is_no_number_is_refused(tmp_path: Path, record: bytes) -> None:
    """Python itself reads no number of more than 4300 digits."""
    with pytest.raises(FileError, match="a broken extended header"):
        arrive(tmp_path / "out", tar(("x", tarfile.XHDTYPE, record), ("e", FILE, b"")))


def test_file_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="twice"):
        arrive(tmp_path / "out", tar(("a", FILE, b"1"), ("a", FILE, b"2")))


def test_too_many_bytes_are_refused_before_they_are_written(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        arrive(tmp_path / "out", tar(("a", FILE, b"x" * 2000)), most_bytes=1999)
    assert caught.value.reason == "too_large"
    assert os.listdir(tmp_path / "out") == []


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they are: empty directories take inodes of the caller's, too."""
    monkeypatch.setattr(tar_unpack, "_MOST_ENTRIES", 3)
    entries = [(str(n), DIRECTORY, b"") for n in range(4)]
    assert arrive(tmp_path / "control", tar(*entries[:3])) == 0
    with pytest.raises(FileError, match="more than 3 entries"):
        arrive(tmp_path / "out", tar(*entries))


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_long_extended_header_is_refused_before_it_is_kept(tmp_path: Path, kind: bytes) -> None:
    """It is kept in memory and is not among the bytes that the caller allowed."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 64 * 1024 + 1
    with pytest.raises(FileError, match="extended header is too long"):
        arrive(tmp_path / "out", header.tobuf())


def test_size_that_no_file_has_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.size = (1 << 50) + 1
    with pytest.raises(FileError, match="impossible size"):
        arrive(tmp_path / "out", header.tobuf(tarfile.GNU_FORMAT), most_bytes=1 << 60)


@pytest.mark.parametrize("cut", [100, 600, 1600])
def test_stream_that_ends_early_is_refused(tmp_path: Path, cut: int) -> None:
    with pytest.raises(FileError, match="too early"):
        arrive(tmp_path / "out", tar(("a", FILE, b"x" * 2000))[:cut])


def test_target_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(Conflict):
        Arrival(tmp_path, 1)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("arrival")


@given(data=st.binary(min_size=512, max_size=2048), position=st.integers(0, 1500))
@settings(max_examples=150, deadline=None)
def test_damaged_stream_never_leaves_the_target(
    fresh: Callable[[], Path], data: bytes, position: int
) -> None:
    whole = bytearray(tar(("d/a", FILE, b"x" * 600), ("../b", FILE, b"y")))
    whole[position : position + len(data) // 8] = data[: len(data) // 8]
    base = fresh()
    with contextlib.suppress(CellwallError):
        arrive(base / "out", bytes(whole))
    assert [p.name for p in base.iterdir()] == ["out"]
