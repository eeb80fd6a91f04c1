"""How an answer leaves the server: its head with the body that follows, and never too late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from cellwall.server.http.uvicorn_protocol import Gathering


class Wire:
    """Notes what is written to a connection, and that it is closed."""

    def __init__(self) -> None:
        self.said: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        assert "closed" not in self.said
        self.said.append(data)

    def close(self) -> None:
        self.said.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.said


def answered(step: Callable[[Gathering], None], *, turns: int = 0) -> list[bytes | str]:
    async def run() -> list[bytes | str]:
        wire = Wire()
        one = Gathering(cast(asyncio.Transport, wire), asyncio.get_running_loop())
        step(one)
        for _ in range(turns):
            await asyncio.sleep(0)
        return list(wire.said)

    return asyncio.run(run())


def written(*pieces: bytes) -> Callable[[Gathering], None]:
    def step(one: Gathering) -> None:
        for piece in pieces:
            one.write(piece)

    return step


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ([b"head", b"body"], [b"headbody"]),
        ([b"head", b"a", b"b"], [b"heada", b"b"]),
        ([b"head", bytes(70_000)], [b"head", bytes(70_000)]),
    ],
)
def test_head_goes_with_what_follows_it(pieces: list[bytes], wanted: list[bytes]) -> None:
    assert answered(written(*pieces)) == wanted


def test_head_of_a_stream_that_says_nothing_yet_goes_at_once() -> None:
    assert answered(written(b"head")) == []
    assert answered(written(b"head"), turns=2) == [b"head"]


def test_nothing_is_lost_when_it_closes() -> None:
    def step(one: Gathering) -> None:
        one.write(b"head")
        one.close()

    assert answered(step, turns=2) == [b"head", "closed"]


def test_connection_that_is_cut_meanwhile_gets_nothing_more() -> None:
    async def run() -> list[bytes | str]:
        wire = Wire()
        one = Gathering(cast(asyncio.Transport, wire), asyncio.get_running_loop())
        one.write(b"head")
        wire.close()
        await asyncio.sleep(0)
        assert one.is_closing()
        return wire.said

    assert asyncio.run(run()) == ["closed"]
