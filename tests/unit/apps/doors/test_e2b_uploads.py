"""Compressed uploads of the E2B daemon: what they become, and where they are cut."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError
from cellwall.apps.doors.e2b.daemon.files import inflated
from cellwall.server.core.errors import HttpError

_MOST = 100_000


def _inflated(data: bytes, step: int = 1 << 16) -> bytes:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), step):
            yield data[at : at + step]

    async def collected() -> bytes:
        return b"".join([piece async for piece in inflated(pieces(), _MOST)])

    return asyncio.run(collected())


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.integers(1, 50))
def test_what_was_packed_is_unpacked_however_it_is_cut(parts: list[bytes], step: int) -> None:
    assert _inflated(b"".join(map(gzip.compress, parts)), step) == b"".join(parts)


def test_a_small_body_cannot_become_a_large_file() -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    with pytest.raises(HttpError) as caught:
        _inflated(bomb)
    assert caught.value.status == 413
    with pytest.raises(HttpError):
        _inflated(gzip.compress(bytes(_MOST)) + gzip.compress(b"1"))
    assert len(_inflated(gzip.compress(bytes(_MOST)))) == _MOST


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not gzip",
        gzip.compress(b"x" * 100, mtime=0)[:-1],
        gzip.compress(b"x", mtime=0) + b"rest",
    ],
    ids=["nothing", "other", "cut", "followed"],
)
def test_what_is_no_gzip_is_refused(data: bytes) -> None:
    with pytest.raises(ConnectError, match="gzip"):
        _inflated(data)
