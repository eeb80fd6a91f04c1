"""The cgroup work is done by a thread, never by the event loop.

Without cgroups, on purpose: what is tested is where the work is done. The real ones are in
`tests/attack`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from cellwall.linux.cgroups.hierarchies import Layout
from cellwall.runtimes.jail.worker import Worker
from cellwall.runtimes.shared.cgroup_keeper import GroupKeeper

_WORKER = cast(Worker, object())


class _Moves:
    """Whether each move was made on the event loop's thread, and how it ends."""

    def __init__(self) -> None:
        self.threads: list[bool] = []
        self.error: Exception | None = None

    def move(self, _tell: Any, _worker: Any) -> None:
        self.threads.append(threading.current_thread() is threading.main_thread())
        if self.error is not None:
            raise self.error


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> _Moves:
    made = _Moves()
    monkeypatch.setattr(GroupKeeper, "_move", lambda _, *asked: made.move(*asked))
    return made


def _with_keeper(work: Callable[[GroupKeeper], Any]) -> None:
    async def run() -> None:
        keeper = GroupKeeper(Layout(()))
        try:
            await work(keeper)
        finally:
            keeper.close()

    asyncio.run(run())


def test_the_kernel_is_asked_by_a_thread(moves: _Moves) -> None:
    async def work(keeper: GroupKeeper) -> None:
        for _ in range(20):
            await keeper.move_on(_WORKER)

    _with_keeper(work)
    assert moves.threads == [False] * 20


def test_a_move_that_fails_says_so_to_who_asked(moves: _Moves) -> None:
    moves.error = OSError("no more of them")

    async def work(keeper: GroupKeeper) -> None:
        with pytest.raises(OSError, match="no more of them"):
            await keeper.move_on(_WORKER)

    _with_keeper(work)
    assert moves.threads == [False]
