"""The reader of tars beside Python's own, which is slower and takes the same for granted."""

from __future__ import annotations

import io
import random
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from cellwall.jail.unpack.tar_stream import Damaged, Member, TarStream

KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.GNUTYPE_SPARSE: "file",
    tarfile.LNKTYPE: "hard link",
    tarfile.SYMTYPE: "link",
    tarfile.DIRTYPE: "directory",
    tarfile.FIFOTYPE: "fifo",
}
SPARSE = [
    ["--format=gnu"],
    ["--format=posix", "--sparse-version=0.0"],
    ["--format=posix", "--sparse-version=0.1"],
    ["--format=posix", "--sparse-version=1.0"],
]
_CHECKSUM = slice(148, 156)


def read(data: bytes) -> list[tuple[Member, bytes]]:
    tar = TarStream(io.BytesIO(data).read)
    return [(each, b"".join(tar.content()) if each.kind == "file" else b"") for each in tar]


def ours(data: bytes) -> list[object]:
    return [
        (
            each.name.rstrip("/"),
            each.kind,
            (each.mode, each.uid, each.gid, each.mtime_ns // 10**9),
            each.link if "link" in each.kind else "",
            each.attributes,
            content,
        )
        for each, content in read(data)
    ]


def theirs(data: bytes) -> list[object]:
    found: list[object] = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for each in tar:
            file = tar.extractfile(each) if each.isreg() else None
            found.append(
                (
                    each.name.rstrip("/"),
                    KINDS.get(each.type, "other"),
                    (each.mode & 0o7777, each.uid, each.gid, int(each.mtime)),
                    each.linkname if each.issym() or each.islnk() else "",
                    any(key.startswith("SCHILY.xattr.") for key in each.pax_headers),
                    b"" if file is None else file.read(),
                )
            )
    return found


def member(name: str, kind: bytes = tarfile.REGTYPE, **words: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for key, value in words.items():
        setattr(made, key, value)
    return made


def packed(members: Sequence[tuple[tarfile.TarInfo, bytes]], form: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


PLAIN = [
    (member("d", tarfile.DIRTYPE, mode=0o2750, uid=7, gid=8), b""),
    (member("d/file", mode=0o4755, mtime=1_600_000_000, uid=1000), b"x" * 1500),
    (member("d/empty"), b""),
    (member("d/block"), b"y" * 512),
    (member("d/same", tarfile.LNKTYPE, linkname="d/file"), b""),
    (member("d/way", tarfile.SYMTYPE, linkname="../elsewhere"), b""),
    (member("pipe", tarfile.FIFOTYPE), b""),
    (member("null", tarfile.CHRTYPE, devmajor=1, devminor=3), b""),
    (member("a" * 90 + "/" + "b" * 90), b"split in two fields"),
]
LONG = [
    *PLAIN,
    (member("n" * 200 + "/" + "é" * 90), b"long"),
    (member("l", tarfile.SYMTYPE, linkname="t" * 300), b""),
    (member("large-ids", uid=3_000_000, gid=1 << 31), b"more than eight octal digits"),
    (member("odd-\udcff"), b"undecodable"),
]
PAX = [
    *LONG,
    (member("late", mtime=1_600_000_000.25), b""),
    (member("marked", pax_headers={"SCHILY.xattr.user.x": "\x01\0\n="}), b"attributes"),
]


@pytest.mark.parametrize(
    ("members", "form"),
    [
        pytest.param(PLAIN, tarfile.USTAR_FORMAT, id="ustar"),
        pytest.param(LONG, tarfile.GNU_FORMAT, id="gnu"),
        pytest.param(PAX, tarfile.PAX_FORMAT, id="pax"),
    ],
)
def test_reads_as_tarfile_does(members: Sequence[tuple[tarfile.TarInfo, bytes]], form: int) -> None:
    data = packed(members, form)
    assert len(ours(data)) == len(members)
    assert ours(data) == theirs(data)


def test_time_has_its_nanoseconds() -> None:
    info = member("late", pax_headers={"mtime": "1600000000.123456789"})
    ((found, _),) = read(packed([(info, b"")], tarfile.PAX_FORMAT))
    assert found.mtime_ns == 1_600_000_000_123_456_789


def test_time_before_the_epoch_is_the_epoch() -> None:
    ((found, _),) = read(packed([(member("old", mtime=-5.5), b"")], tarfile.PAX_FORMAT))
    assert found.mtime_ns == 0


def with_holes(folder: Path, form: Sequence[str]) -> bytes:
    """A tar by GNU tar, of a file that is mostly holes, one with many, and one behind them."""
    with (folder / "1-few").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"abc" * 1000)
        file.truncate(3 << 20)
    with (folder / "2-many").open("wb") as file:
        for number in range(40):
            file.seek(number << 16)
            file.write(b"y" * 100)
        file.truncate(3 << 20)
    (folder / "3-plain").write_bytes(b"behind")
    words = ["tar", "cf", "-", "-b1", "--sparse", "--sort=name", *form, "."]
    return subprocess.run(words, cwd=folder, check=True, capture_output=True).stdout


@pytest.mark.parametrize("form", SPARSE, ids=["-".join(words) for words in SPARSE])
def test_sparse_files_as_tarfile_does(tmp_path: Path, form: Sequence[str]) -> None:
    data = with_holes(tmp_path, form)
    assert len(data) < 1 << 19
    assert ours(data) == theirs(data)
    passed_over = [each.name for each in TarStream(io.BytesIO(data).read)]
    assert passed_over == [each.name for each, _ in read(data)]


def test_no_end_is_an_end_and_no_tar_is_none() -> None:
    whole = packed(PLAIN[:2], tarfile.USTAR_FORMAT)
    assert ours(whole[: 512 + 512 + 1536]) == ours(whole)
    for data in (b"", b"no tar", b"\1" * 4096):
        with pytest.raises(Damaged):
            read(data)


def test_cut_anywhere_is_damage() -> None:
    """But for the ends of members, where a tar may end: some writers forget the blocks for it."""
    whole = packed(PAX, tarfile.PAX_FORMAT)
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        starts = {each.offset: number for number, each in enumerate(tar)}
        end = tar.offset
    for size in range(256, end, 256):
        if size in starts:
            assert len(read(whole[:size])) == starts[size]
        else:
            with pytest.raises(Damaged):
                read(whole[:size])
    assert len(read(whole[:end])) == len(PAX)


@pytest.mark.parametrize("at", range(0, 500, 7))
def test_changed_byte_of_a_header_is_damage(at: int) -> None:
    data = bytearray(packed(PLAIN, tarfile.USTAR_FORMAT))
    data[512 + at] ^= 0x01
    with pytest.raises(Damaged):
        read(bytes(data))


@pytest.mark.parametrize(
    ("record", "match"),
    [
        pytest.param(b"99 path=x\n", "extended header", id="longer-than-there-is"),
        pytest.param(b"9 path=xx\n", "extended header", id="shorter-than-it-is"),
        pytest.param(b"x path=x\n", "damaged header", id="no-number"),
        pytest.param(b"-9 path=x\n", "extended header", id="negative"),
        pytest.param(b"0 path=x\n", "extended header", id="nothing"),
        pytest.param(b"9 pathexx\n", "extended header", id="no-value"),
        pytest.param(b"11 size=-1\n", "less than no bytes", id="negative-size"),
        pytest.param(b"12 size=1x0\n", "damaged header", id="size-of-letters"),
    ],
)
def test_damaged_records(record: bytes, match: str) -> None:
    header = member("x", tarfile.XHDTYPE, size=len(record)).tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(Damaged, match=match):
        read(header + record.ljust(512, b"\0") + packed(PLAIN, tarfile.USTAR_FORMAT))


def test_extended_header_has_a_bound() -> None:
    header = member("x", tarfile.XHDTYPE, size=(1 << 20) + 1).tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(Damaged, match="1048577 bytes"):
        read(header + bytes(2 << 20))


def test_whatever_the_bytes_are(tmp_path: Path) -> None:
    """Four thousand damaged tars: each reads, or is said to be damaged; none exceeds a size."""
    wholes = [with_holes(tmp_path, form) for form in SPARSE]
    wholes += [packed(LONG, tarfile.GNU_FORMAT), packed(PAX, tarfile.PAX_FORMAT)]
    chance, outcomes = random.Random(5), {"read": 0, "damaged": 0}
    for _ in range(4000):
        data = bytearray(chance.choice(wholes)[: 64 << 10])
        for _ in range(chance.randint(1, 4)):
            damage(data, chance)
        outcomes[outcome(bytes(data))] += 1
    assert min(outcomes.values()) > 200


def damage(data: bytearray, chance: random.Random) -> None:
    """Change a byte of one of the first blocks, and have it pass for a header all the same."""
    at = chance.randrange(min(len(data), 4096) // 512) * 512
    block = data[at : at + 512]
    block[chance.randrange(512)] = chance.choice((0, 32, 48, 55, 57, 128, 255))
    block[_CHECKSUM] = b" " * 8
    block[_CHECKSUM] = b"%06o\0 " % sum(block)
    data[at : at + 512] = block


def outcome(data: bytes) -> str:
    tar = TarStream(io.BytesIO(data).read)
    try:
        for each in tar:
            total = 0
            for piece in tar.content() if each.kind == "file" else ():
                total += len(piece)
                if total > 8 << 20:  # a hole without an end; its size is what a caller bounds
                    break
            assert total <= each.size
    except Damaged:
        return "damaged"
    return "read"
