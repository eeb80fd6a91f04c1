"""The lines of a batch: cut where they end, counted while they are held, spoilt one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.model.errors import CapacityError
from cellwall.server.core.body_budget import BodyBudget, Held
from cellwall.server.core.errors import HttpError
from cellwall.server.core.settings import ServerSettings
from cellwall.server.http import batch_lines
from cellwall.server.http.batch_lines import Item, Lines
from cellwall.server.schemas.requests import ExecuteBody


class _Batch:
    """As the route: takes items, and may have something running that holds bytes."""

    def __init__(self, pieces: list[bytes], most_bytes: int = 10**6) -> None:
        self.bodies = BodyBudget(most_bytes)
        self._pieces = pieces
        self.others: list[Held] = []
        self.asked = 0

    async def _give(self, _: int) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def _make_room(self) -> bool:
        self.asked += 1
        if not self.others:
            return False
        self.others.pop().release()
        return True

    def hold(self, size: int) -> None:
        held = Held(self.bodies, "alice")
        held.resize(size)
        self.others.append(held)

    def lines(self) -> Lines:
        state = SimpleNamespace(bodies=self.bodies)
        call = SimpleNamespace(
            state=state, owner="alice", settings=ServerSettings(), pieces=self._give
        )
        return Lines(cast("Any", call), self._make_room)

    def taken(self) -> list[Item]:
        async def take() -> list[Item]:
            found = []
            async for item in self.lines().items():
                assert self.bodies.held_bytes >= item.held.size
                assert (item.held.size > 0) == isinstance(item.body, ExecuteBody)
                found.append(item)
                item.held.release()
            return found

        return asyncio.run(take())


def _line(code: str) -> bytes:
    return json.dumps({"code": code}).encode()


def _codes(items: list[Item]) -> list[str | None]:
    return [item.body.code if isinstance(item.body, ExecuteBody) else None for item in items]


@given(
    codes=st.lists(st.text("ab\n ü", min_size=1, max_size=20), max_size=5),
    blank=st.sampled_from([b"\n", b"\n\n", b"\n \n", b"\r\n"]),
    is_ended=st.booleans(),
    cut=st.integers(1, 9),
)
def test_lines_are_the_same_however_they_come(
    codes: list[str], blank: bytes, is_ended: bool, cut: int
) -> None:
    sent = blank.join(_line(code) for code in codes) + (blank if is_ended else b"")
    batch = _Batch([sent[at : at + cut] for at in range(0, len(sent), cut)])
    items = batch.taken()
    assert _codes(items) == codes
    assert [item.index for item in items] == list(range(len(codes)))
    assert batch.bodies.held_bytes == 0


def test_a_line_that_is_too_long_spoils_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "LINE_BYTES", 100)
    long = _line("x" * 200)
    batch = _Batch([_line("1") + b"\n" + long[:90], long[90:150], long[150:] + b"\n" + _line("2")])
    items = batch.taken()
    assert _codes(items) == ["1", None, "2"]
    fault = items[1].body
    assert isinstance(fault, HttpError)
    assert (fault.status, fault.code) == (413, "too_large")
    assert "line 1" in str(fault)
    assert batch.bodies.held_bytes == 0


def test_a_line_waits_for_room_that_the_batch_itself_can_make() -> None:
    batch = _Batch([_line("x" * 60) + b"\n"], most_bytes=200)
    batch.hold(50)
    batch.hold(40)
    assert _codes(batch.taken()) == ["x" * 60]
    assert batch.asked == 2


def test_without_room_a_line_is_refused_and_the_next_is_not() -> None:
    batch = _Batch([_line("x" * 300) + b"\n" + _line("1") + b"\n"], most_bytes=200)
    items = batch.taken()
    assert _codes(items) == [None, "1"]
    fault = items[0].body
    assert isinstance(fault, CapacityError)
    assert fault.__traceback__ is None  # its frames hold the line
    assert batch.bodies.held_bytes == 0


def test_who_stops_reading_holds_what_was_taken_alone() -> None:
    batch = _Batch([_line("1") + b"\n" + b"x" * 40, b"x" * 60, b"\nmore"])

    async def stop() -> None:
        items = batch.lines().items()
        (await anext(items)).held.release()
        taken = await anext(items)  # no JSON, and held until it was told so
        await items.aclose()
        assert batch.bodies.held_bytes == 100
        taken.held.release()
        assert batch.bodies.held_bytes == 0

    asyncio.run(stop())
