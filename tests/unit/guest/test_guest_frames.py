"""Frames survive any cutting, and nothing but frames gets through."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guest.channel.frames import Decoder, FrameError, encode

_SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20)
_HEADERS = st.dictionaries(st.text(max_size=10), _SCALARS | st.lists(_SCALARS, max_size=4))


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(
    frames=st.lists(st.tuples(_HEADERS, st.binary(max_size=200)), max_size=5),
    places=st.lists(st.integers(0, 5000), max_size=20),
)
def test_frames_survive_any_cutting(
    frames: list[tuple[dict[str, Any], bytes]], places: list[int]
) -> None:
    decoder = Decoder()
    data = b"".join(encode(header, body) for header, body in frames)
    seen = [frame for piece in _cut(data, places) for frame in decoder.feed(piece)]
    assert seen == frames
    assert decoder.is_idle


@given(st.binary(max_size=400))
@settings(max_examples=300)
def test_garbage_gives_frames_or_a_frame_error(data: bytes) -> None:
    decoder = Decoder(max_header=256, max_body=64)
    try:
        for header, body in decoder.feed(data):
            assert isinstance(header, dict)
            assert len(body) <= 64
    except FrameError:
        with pytest.raises(FrameError, match="after an error"):
            list(decoder.feed(encode({})))


@given(_HEADERS, st.binary(max_size=50), st.data())
def test_truncated_frame_is_never_delivered(
    header: dict[str, Any], body: bytes, data: st.DataObject
) -> None:
    whole = encode(header, body)
    decoder = Decoder()
    assert list(decoder.feed(whole[: data.draw(st.integers(0, len(whole) - 1))])) == []


@pytest.mark.parametrize("lengths", [(2**32 - 1, 0), (2, 2**32 - 1), (2**32 - 1, 2**32 - 1)])
def test_four_gigabyte_lengths_are_refused_at_once(lengths: tuple[int, int]) -> None:
    with pytest.raises(FrameError, match="limit"):
        list(Decoder().feed(struct.pack(">II", *lengths)))


def test_caps_are_inclusive() -> None:
    frame = encode({"a": 1}, b"x" * 10)
    header_bytes = struct.unpack(">II", frame[:8])[0]
    assert list(Decoder(header_bytes, 10).feed(frame)) == [({"a": 1}, b"x" * 10)]
    with pytest.raises(FrameError, match="header"):
        list(Decoder(header_bytes - 1, 10).feed(frame))
    with pytest.raises(FrameError, match="body"):
        list(Decoder(header_bytes, 9).feed(frame))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"1", b'{"a":NaN}', b'{"a":-Infinity}', b"\xff\xfe", b"[" * 60_000, b'{"a":1}x'],
)
def test_header_that_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(FrameError, match="frame header"):
        list(Decoder().feed(struct.pack(">II", len(text), 0) + text))


def test_encode_refuses_what_is_not_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": float("inf")})


def test_encoded_header_is_plain_json() -> None:
    frame = encode({"päth": "\udcff"}, b"body")
    length = struct.unpack(">II", frame[:8])[0]
    assert json.loads(frame[8 : 8 + length]) == {"päth": "\udcff"}
