"""What a hostile guest says of a work area is refused, or harms the guest alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.engine.history.manifest import Manifest
from cellwall.engine.history.pack import Pack
from cellwall.engine.history.receiving import Receiver
from cellwall.guest.files import tree_records as records
from cellwall.runtimes.channel.frames import FrameError

_NUMBERS = (0o644, 5, 3, 1, 2, 1, 1000, 1000)
_TOP = records.entry(b"d", b"", _NUMBERS, (records.NO_FINGERPRINT, b""))
_END = records.END.pack(b"Z-")


@pytest.fixture
def pack(tmp_path: Path) -> Iterator[Pack]:
    made = Pack(tmp_path)
    yield made
    made.close()


def _entry(kind: bytes, path: bytes, target: bytes = b"", size: int = 3) -> bytes:
    numbers = (*_NUMBERS[:2], size, *_NUMBERS[3:])
    return records.entry(kind, path, numbers, (records.NO_FINGERPRINT, target))


def _piece(offset: int, data: bytes) -> bytes:
    return records.PIECE.pack(b"D-", offset, len(data)) + data


WHOLE = (
    _TOP
    + _entry(b"d", b"a")
    + _entry(b"F", b"a/x")
    + _piece(0, b"abc")
    + _END
    + _entry(b"l", b"l", b"/etc")
)


def _received(pack: Pack | None, data: bytes, step: int = 1 << 20, most: int = 100) -> Manifest:
    receiver = Receiver(pack, most)
    for at in range(0, len(data), step):
        receiver.feed(data[at : at + step])
    return receiver.finish()


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_description_is_read_in_pieces_of_any_size(pack: Pack, step: int) -> None:
    manifest = _received(pack, WHOLE, step)
    assert list(manifest.entries) == [b"", b"a", b"a/x", b"l"]
    assert list(pack.pieces(manifest.entries[b"a/x"].digest)) == [(0, b"abc")]
    assert Manifest.unpacked(manifest.packed()).entries == manifest.entries


HOSTILE = {
    "above": _TOP + _entry(b"l", b"../x", b"t"),
    "absolute": _TOP + _entry(b"l", b"/etc/passwd", b"t"),
    "dot": _TOP + _entry(b"d", b"."),
    "dots inside": _TOP + _entry(b"d", b"a") + _entry(b"d", b"a/.."),
    "empty name": _TOP + _entry(b"d", b"a") + _entry(b"d", b"a//b"),
    "below no directory": _TOP + _entry(b"d", b"a/b"),
    "below a file": _TOP + _entry(b"F", b"a") + _END + _entry(b"d", b"a/b"),
    "below a link": _TOP + _entry(b"l", b"a", b"/") + _entry(b"d", b"a/etc"),
    "NUL": _TOP + _entry(b"d", b"a\0b"),
    "twice": _TOP + _entry(b"d", b"a") + _entry(b"d", b"a"),
    "top twice": _TOP + _TOP,
    "no top": _entry(b"d", b"a"),
    "long name": _TOP + _entry(b"d", b"a" * 256),
    "unknown kind": _TOP + _entry(b"q", b"a"),
    "restoration's own kind": _TOP + _entry(b"x", b"a"),
    "unknown record": _TOP + b"??",
    "file without content": _TOP + _entry(b"f", b"a"),
    "link without target": _TOP + _entry(b"l", b"a"),
    "target without link": _TOP + _entry(b"d", b"a", b"t"),
    "entry within a file": _TOP + _entry(b"F", b"a") + _entry(b"d", b"b"),
    "piece of nothing": _TOP + _piece(0, b"abc"),
    "end of nothing": _TOP + _END,
    "piece beyond the size": _TOP + _entry(b"F", b"a") + _piece(1, b"abc") + _END,
    "pieces backwards": _TOP
    + _entry(b"F", b"a", size=9)
    + _piece(5, b"a")
    + _piece(2, b"b")
    + _END,
    "endless piece": _TOP
    + _entry(b"F", b"a", size=1 << 40)
    + records.PIECE.pack(b"D-", 0, 1 << 30),
    "endless path": _TOP + records.ENTRY.pack(b"Ed", *_NUMBERS, bytes(32), 1 << 30, 0),
    "cut off": WHOLE[:-1],
    "cut off in a file": _TOP + _entry(b"F", b"a"),
    "nothing": b"",
    "more than asked for": _TOP + b"".join(_entry(b"d", b"%d" % n) for n in range(101)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=list(HOSTILE))
def test_what_is_no_tree_is_refused(pack: Pack, data: bytes) -> None:
    with pytest.raises(FrameError):
        _received(pack, data)


def test_content_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(FrameError, match="not asked for"):
        _received(None, _TOP + _entry(b"F", b"a"))


def test_a_guest_cannot_name_the_digest_of_a_content(pack: Pack) -> None:
    lie = records.entry(b"F", b"a", _NUMBERS, (b"\1" * 32, b""))
    manifest = _received(pack, _TOP + lie + _piece(0, b"abc") + _END)
    digest = manifest.entries[b"a"].digest
    assert digest != b"\1" * 32
    assert not pack.has(b"\1" * 32)
    assert list(pack.pieces(digest)) == [(0, b"abc")]


def test_ten_thousand_mutations_are_read_or_refused(pack: Pack) -> None:
    for seed in range(10_000):
        data = bytearray(WHOLE)
        for at in range(0, 1 + seed % 4):
            place = int.from_bytes(os.urandom(3), "big") % len(data)
            data[place] = (seed * 31 + at) % 256
        try:
            manifest = _received(pack, bytes(data))
        except FrameError:
            continue
        finally:
            pack.cut(0)
        assert all(b".." not in path.split(b"/") for path in manifest.entries)


def test_fingerprint_is_of_the_content_and_not_of_its_pieces() -> None:
    dense, sparse, other = records.Fingerprint(), records.Fingerprint(), records.Fingerprint()
    data = b"x" * 4096 + bytes(8192) + b"y" * 100
    for offset, run in records.without_zeros(0, data):
        dense.add(offset, run)
    sparse.add(0, b"x" * 4000)
    sparse.add(4000, b"x" * 96)
    sparse.add(12_288, b"y" * 100)
    other.add(0, b"x" * 4096)
    other.add(8192, b"y" * 100)
    assert dense.finish(len(data)) == sparse.finish(len(data)) != other.finish(len(data))


def test_dropped_contents_give_the_disk_back(pack: Pack, tmp_path: Path) -> None:
    digests = []
    for letter in (b"a", b"b"):
        pack.begin(100_000)
        pack.add(0, letter * 100_000)
        digests.append(pack.finish())
        pack.use({digests[-1]})
    place = pack.put(b"manifest")
    (moved,) = pack.drop({digests[0]}, [place])
    assert pack.read(*moved) == b"manifest"
    assert pack.end == 100_008
    assert not pack.has(digests[0])
    assert b"".join(data for _, data in pack.pieces(digests[1])) == b"b" * 100_000
    assert list(tmp_path.iterdir()) == []
