"""The clocks of an execution stand still while its sandbox does."""

from __future__ import annotations

import asyncio

from cellwall.engine.attempts.deadlines import Deadlines
from cellwall.engine.attempts.verdicts import Cause
from cellwall.model.limits import Limits
from kit.loop_clock import clock, run


class _Clocks:
    def __init__(self, **limits: float) -> None:
        self.cpu_s = 0.0
        self.breached: list[tuple[float, Cause]] = []
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.clocks = Deadlines(
            Limits().with_changes(dict(limits)), lambda: self.cpu_s, 0.0, self._note
        )

    def _note(self, cause: Cause) -> None:
        self.breached.append((round(self._loop.time() - self._began_s, 2), cause))


def test_wall_time_goes_on_where_it_stood() -> None:
    async def main() -> list[tuple[float, Cause]]:
        it = _Clocks(wall_s=4)
        await clock().advance(3)
        it.clocks.hold()
        it.clocks.hold()
        await clock().advance(100)
        assert it.breached == []
        it.clocks.go_on()
        it.clocks.go_on()
        await clock().advance(100)
        return it.breached

    assert run(main()) == [(104.0, Cause.WALL)]


def test_without_a_pause_it_fires_in_time() -> None:
    async def main() -> list[tuple[float, Cause]]:
        it = _Clocks(wall_s=4)
        await clock().advance(100)
        return it.breached

    assert run(main()) == [(4.0, Cause.WALL)]


def test_cpu_time_is_looked_at_again_after_a_pause() -> None:
    async def main() -> list[Cause]:
        it = _Clocks(wall_s=1000, cpu_s=2)
        await clock().advance(1)
        it.clocks.hold()
        await clock().advance(50)
        it.cpu_s = 2.5
        await clock().advance(50)
        assert it.breached == []
        it.clocks.go_on()
        await clock().advance(1)
        return [cause for _, cause in it.breached]

    assert run(main()) == [Cause.CPU]


def test_clocks_that_were_stopped_stay_so() -> None:
    async def main() -> list[tuple[float, Cause]]:
        it = _Clocks(wall_s=4)
        it.clocks.stop()
        it.clocks.hold()
        it.clocks.go_on()
        await clock().advance(100)
        return it.breached

    assert run(main()) == []
