"""Handing programs in the background to nodes: what is written of a try, and room aside."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.cluster.directory.connection import away
from cellwall.cluster.directory.programs import Taken
from cellwall.cluster.gateway.background import aside as aside_module
from cellwall.cluster.gateway.background.aside import Aside, Room
from cellwall.cluster.gateway.background.program import Program
from cellwall.cluster.gateway.work.turns import Turns
from cellwall.model.errors import CapacityError, CellwallError
from cellwall.model.ids import GATEWAYS, new_id
from cellwall.store.records.errors import StoreBusy


class _Rows:
    """The directory's rows, as far as these tests write them."""

    def __init__(self) -> None:
        self.given_up: list[int] = []

    async def give_up(self, _tenant: str, _program_id: str, tries: int) -> bool:
        self.given_up.append(tries)
        return True


def _program(rows: _Rows, raised: CellwallError) -> Program:
    class Failing(Program):
        """A program whose way to a node fails after a try was written."""

        async def _at_a_node(self, turn: object) -> None:
            raise raised

    said = json.dumps({"key_id": "", "scope": "run", "request_id": "r", "accept": ""})
    taken = Taken(new_id(GATEWAYS), "moss", said, "{}", "", "begun", "a7c2", 1, 0.0, 2)
    gateway: Any = SimpleNamespace()
    unused: Any = None
    written: Any = rows
    return Failing(gateway, written, unused, taken, {})


def test_a_try_is_given_up_only_while_the_directory_knows_of_it() -> None:
    async def go(raised: CellwallError, rows: _Rows) -> bool:
        unused: Any = None
        return await _program(rows, raised)._in_turn(unused)

    full, busy = _Rows(), _Rows()
    assert not asyncio.run(go(CapacityError("full", retry_after_s=1.0, remedy="wait"), full))
    assert full.given_up == [1]
    with pytest.raises(StoreBusy):
        asyncio.run(go(away("background"), busy))
    assert busy.given_up == []


# -- room at nodes -----------------------------------------------------------------------------


def _aside(places: int) -> Aside:
    turns = Turns({}, {}, 100)
    turns.places = places
    return Aside(turns)


async def _given(waiting: list[asyncio.Task[Room]], count: int) -> None:
    """Return when so many have room. Raises TimeoutError."""
    async with asyncio.timeout(10.0):
        while sum(each.done() for each in waiting) < count:
            pending = [each for each in waiting if not each.done()]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)


def test_what_never_begins_keeps_no_other_tenants_programs_from_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aside_module, "_LONG_S", 0.05)

    async def go() -> None:
        aside, loop = _aside(8), asyncio.get_running_loop()
        stuck = [loop.create_task(aside.enter("stuck")) for _ in range(20)]
        await _given(stuck, 8)
        moss = [loop.create_task(aside.enter("moss")) for _ in range(6)]
        await _given(moss, 6)
        assert sum(each.done() for each in stuck) <= 8 + 2  # a quarter in its turns
        for each in moss:
            each.result().leave()
        for each in stuck[:7]:  # they have begun: there is room again
            each.result().leave()
        await _given(stuck, 15)
        for each in stuck:
            each.cancel()

    asyncio.run(go())


def test_tenants_have_room_in_turn() -> None:
    async def go() -> None:
        aside, loop = _aside(1), asyncio.get_running_loop()
        first = await aside.enter("many")
        order: list[str] = []

        async def enter(tenant: str) -> None:
            room = await aside.enter(tenant)
            order.append(tenant)
            room.leave()
            room.leave()  # once

        names = ["many"] * 4 + ["moss", "fern"]
        entering = [loop.create_task(enter(each)) for each in names]
        await asyncio.sleep(0)
        first.leave()
        async with asyncio.timeout(10.0):
            await asyncio.gather(*entering)
        assert order[:3] == ["many", "moss", "fern"]
        assert len(order) == 6

    asyncio.run(go())
