"""Who does the cgroup work: the loop while the kernel is quick, a thread when it is not.

Without cgroups, on purpose: what is tested is where the work is done, and what real ones cost is
nothing a test can choose. The clock is the tests' own: on a busy machine every step may take long.
The real ones are in `tests/attack`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellwall.linux.cgroups.hierarchies import Layout
from cellwall.runtimes.jail.worker import Worker
from cellwall.runtimes.shared import cgroup_keeper
from cellwall.runtimes.shared.cgroup_keeper import GroupKeeper

_WORKER = cast(Worker, object())


class _Moves:
    """Where each move was made, and how long it is to take."""

    def __init__(self) -> None:
        self.threads: list[bool] = []
        self.takes_s = 0.0
        self.now_s = 1000.0
        self.error: Exception | None = None

    def move(self, _tell: Any, _worker: Any) -> None:
        self.threads.append(threading.current_thread() is threading.main_thread())
        self.now_s += self.takes_s
        if self.error is not None:
            raise self.error


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> _Moves:
    made = _Moves()
    monkeypatch.setattr(cgroup_keeper, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    monkeypatch.setattr(GroupKeeper, "_move", lambda _, *asked: made.move(*asked))
    monkeypatch.setattr(GroupKeeper, "workers_move_themselves", True)
    return made


async def _moved(keeper: GroupKeeper) -> None:
    if not keeper.move_at_once(_WORKER):
        await keeper.move_on(_WORKER)


def _with_keeper(work: Callable[[GroupKeeper], Any]) -> None:
    async def run() -> None:
        keeper = GroupKeeper(Layout(()))
        try:
            await work(keeper)
        finally:
            keeper.close()

    asyncio.run(run())


def test_a_quick_kernel_is_asked_on_the_loop(moves: _Moves) -> None:
    async def work(keeper: GroupKeeper) -> None:
        for _ in range(20):
            await _moved(keeper)

    _with_keeper(work)
    assert moves.threads == [True] * 20


def test_a_slow_kernel_is_asked_by_a_thread_until_it_had_a_rest(moves: _Moves) -> None:
    async def work(keeper: GroupKeeper) -> None:
        moves.takes_s = 3 * cgroup_keeper._SLOW_S
        while not moves.threads or moves.threads[-1]:
            await _moved(keeper)
        assert len(moves.threads) < 6
        assert moves.now_s < keeper._rests_until < moves.now_s + cgroup_keeper._REST_S
        await _moved(keeper)
        assert moves.threads[-2:] == [False, False]
        moves.takes_s = 0.0
        moves.now_s += cgroup_keeper._REST_S
        for _ in range(20):
            await _moved(keeper)
        assert all(moves.threads[-20:])

    _with_keeper(work)


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_move_that_fails_says_so_to_who_asked(moves: _Moves, *, is_slow: bool) -> None:
    moves.error = OSError("no more of them")

    async def work(keeper: GroupKeeper) -> None:
        keeper._rests_until = moves.now_s + 100 * is_slow
        with pytest.raises(OSError, match="no more of them"):
            await _moved(keeper)

    _with_keeper(work)
    assert moves.threads == [not is_slow]
