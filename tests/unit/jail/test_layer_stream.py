"""A layer as its members: what comes of a good one, and what is said of a bad one."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellwall.jail.unpack.layer_bytes import Layer
from cellwall.jail.unpack.layer_stream import LayerStream

CONTENT = {"small": b"x" * 700, "none": b"", "large": os.urandom(3 << 20), "last": b"end"}
Make = Callable[..., Layer]


def packed() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in CONTENT.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 5.5
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("way")
        link.type, link.linkname, link.size = tarfile.SYMTYPE, "small", 9
        tar.addfile(link)
    return made.getvalue()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Returns a layer whose file has `stored`, and whose digest is that of `data`."""
    files = []

    def made(data: bytes, stored: bytes, compression: str) -> Layer:
        (tmp_path / "file").write_bytes(b"before" + stored + b"behind")
        file = os.open(tmp_path / "file", os.O_RDONLY)
        files.append(file)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        return Layer(file, digest, compression, len(b"before"), len(stored))

    yield made
    for file in files:
        os.close(file)


@pytest.mark.parametrize(
    ("compression", "pack"),
    [
        pytest.param("none", lambda data: data, id="none"),
        pytest.param("gzip", gzip.compress, id="gzip"),
        pytest.param(
            "gzip",
            lambda data: gzip.compress(data[:9999]) + gzip.compress(data[9999:]) + bytes(99),
            id="two-gzips",
        ),
    ],
)
def test_members_and_contents(make: Make, compression: str, pack: Callable[[bytes], bytes]) -> None:
    data = packed()
    stream = LayerStream(make(data, pack(data), compression), 100)
    found = {each.name: (each.kind, b"".join(stream.content())) for each in stream}
    assert stream.close() is None
    assert found.pop("way") == ("link", b"")
    assert found == {name: ("file", content) for name, content in CONTENT.items()}


def test_content_may_be_passed_over(make: Make) -> None:
    data = packed()
    stream = LayerStream(make(data, data, "none"), 100)
    names = []
    for each in stream:
        names.append(each.name)
        if each.name == "large":
            assert CONTENT["large"].startswith(bytes(next(stream.content())))
    assert names == [*CONTENT, "way"]
    assert stream.close() is None


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_more_than_the_processes_share(make: Make, compression: str) -> None:
    """Bytes beyond the memory between the processes: read, left in the middle, behind the end."""
    large = tarfile.TarInfo("large")
    content = os.urandom(20 << 20)
    large.size = len(content)
    member = large.tobuf() + content
    for data, most in ((member + member + bytes(1024), 9), (member * 2, 1), (bytes(20 << 20), 9)):
        stored = data if compression == "none" else gzip.compress(data, 1)
        stream = LayerStream(make(data, stored, compression), 100)
        for _, each in zip(range(most), stream, strict=False):
            assert most == 1 or b"".join(map(bytes, stream.content())) == content
            assert each.size == len(content)
        assert stream.close() is None


def test_sparse_file_comes_with_its_holes(make: Make, tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.seek(9 << 20)
        file.write(b"x" * 5000)
    words = ["tar", "cf", "-", "--sparse", "holes", "holes"]
    data = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True).stdout
    stream = LayerStream(make(data, data, "none"), 100)
    found = [b"".join(map(bytes, stream.content())) for _ in stream]
    assert found == [bytes(9 << 20) + b"x" * 5000, b""]  # the second is a link to the first
    assert stream.close() is None


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("read", [0, 1, 9])
def test_bytes_count_whatever_was_read(make: Make, compression: str, read: int) -> None:
    """Another digest is found also where no member was read; the same layer with its own is not."""
    data = packed()
    stored = data if compression == "none" else gzip.compress(data)
    for meant, wrong in ((data, ""), (data + b"\0", "another digest")):
        stream = LayerStream(make(meant, stored, compression), 100)
        for _, _each in zip(range(read), stream, strict=False):
            pass
        refused = stream.close()
        assert (refused is not None) == bool(wrong)
        assert wrong in str(refused)


@pytest.mark.parametrize(
    ("change", "compression", "said", "code"),
    [
        pytest.param(lambda data: data[:-20000], "none", "another digest", "invalid", id="cut"),
        pytest.param(
            lambda data: b"\x1f\x8bnothing of it", "gzip", "no gzip", "invalid", id="no-gzip"
        ),
        pytest.param(
            lambda data: gzip.compress(data)[:5000], "gzip", "another digest", "invalid", id="half"
        ),
        pytest.param(lambda data: data, "zstd", "with zstd", "unsupported", id="unknown"),
    ],
)
def test_what_is_said_of_bad_bytes(
    make: Make, change: Callable[[bytes], bytes], compression: str, said: str, code: str
) -> None:
    data = packed()
    stream = LayerStream(make(data, change(data), compression), 100)
    for _ in stream:
        pass
    refused = stream.close()
    assert refused is not None
    assert said in str(refused)
    assert refused.code == code


def test_file_that_became_shorter(make: Make) -> None:
    data = packed()
    layer = make(data, data, "none")
    stream = LayerStream(layer._replace(size=len(data) + 100), 100)
    assert len(list(stream)) > 0
    assert "shorter" in str(stream.close())


def test_bomb_is_bounded(make: Make) -> None:
    """Above 64 MiB the ratio counts; a larger one is the control."""
    data = packed() + bytes(70 << 20)
    for ratio, said in ((2, "larger than its compressed size"), (100, "")):
        stream = LayerStream(make(data, gzip.compress(data, 1), "gzip"), ratio)
        for _ in stream:
            pass
        refused = stream.close()
        assert (refused.code if refused else None) == ("bound" if said else None)
        assert said in str(refused)


def test_damage_is_told_once_the_digest_is_right(make: Make) -> None:
    data = bytearray(packed())
    data[1024] ^= 1
    stream = LayerStream(make(bytes(data), bytes(data), "none"), 100)
    assert list(stream) == []
    assert "no tar: it has a damaged" in str(stream.close())
