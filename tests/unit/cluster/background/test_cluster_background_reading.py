"""Reading programs in the background that wait: how often the directory is asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.cluster.directory.programs import Seen
from cellwall.cluster.gateway.background import reading
from cellwall.cluster.gateway.background.reading import Reading
from cellwall.cluster.gateway.wire.heads import RequestHead

_MOST = 40


class _Waiting:
    """The rows of a program that waits."""

    def __init__(self, visit: Any) -> None:
        self.looks = 0
        self._visit = visit

    async def find(self, _tenant: str, _program_id: str) -> Seen:
        self.looks += 1
        self._visit.is_gone = self.looks >= _MOST
        return Seen("queued", "", "{}", None)


@pytest.mark.parametrize("path", ["get", "events"])
def test_who_waits_looks_less_and_less_often(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    async def go() -> None:
        head = RequestHead(b"GET", b"/executions/gate?wait=60", [])
        visit: Any = SimpleNamespace(
            head=head, tenant="moss", is_gone=False, answer=lambda _status, _value: None
        )
        rows: Any = _Waiting(visit)
        gateway: Any = SimpleNamespace(book=SimpleNamespace(lost={}))
        asked = Reading(gateway, rows)
        if path == "get":
            await asked.get(visit, "gate")
        else:
            client: Any = None
            await asked.events(visit, "gate", client)

    clock = SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop)
    monkeypatch.setattr(reading, "asyncio", clock)
    asyncio.run(go())
    assert pauses[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
