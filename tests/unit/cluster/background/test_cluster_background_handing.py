"""Handing programs in the background to nodes: what is written of a try, and room aside."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.cluster.directory.connection import away
from cellwall.cluster.directory.programs import Taken
from cellwall.cluster.gateway.background.program import Program
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
    taken = Taken(new_id(GATEWAYS), "moss", said, "{}", "", "begun", "a7c2", 1, 0.0)
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
