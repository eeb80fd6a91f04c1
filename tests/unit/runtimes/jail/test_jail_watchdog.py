"""Who holds memory where no cgroup does: looks at everyone, at the idle less often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cellwall.runtimes.jail import memory_watchdog
from cellwall.runtimes.jail.memory_watchdog import Watchdog
from kit import loop_clock
from kit.loop_clock import clock

_MANY = 25


class Box:
    """Counts the looks at it."""

    def __init__(self, idle_looks: int = 0, on_look: Callable[[], None] = lambda: None) -> None:
        self.is_closing = False
        self.idle_looks = idle_looks
        self.looks = 0
        self._on_look = on_look

    def kill_above_limit(self) -> None:
        self.looks += 1
        self._on_look()


async def _rounds(boxes: list[Box], count: int) -> None:
    """Watch `boxes` for so many rounds; the last of them is always due."""
    live = set(boxes)
    watchdog = Watchdog(live)
    watchdog.wake()
    task = watchdog._task
    assert task is not None
    await clock().advance((count - 0.5) * memory_watchdog._ROUND_S)
    assert boxes[-1].looks == count
    live.clear()
    await clock().advance(memory_watchdog._ROUND_S)
    assert task.done()
    assert watchdog._task is None


def test_everybody_is_looked_at_in_every_round() -> None:
    boxes = [Box() for _ in range(_MANY)]
    loop_clock.run(_rounds(boxes, 5))
    assert min(box.looks for box in boxes) == 5


def test_one_on_its_way_out_is_left_alone() -> None:
    gone, there = Box(), Box()
    gone.is_closing = True
    loop_clock.run(_rounds([gone, there], 5))
    assert gone.looks == 0


def test_a_look_that_fails_ends_no_watch() -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    failing, there = Box(on_look=refuse), Box()
    loop_clock.run(_rounds([failing, there], 5))
    assert failing.looks == 5


@pytest.mark.parametrize(
    ("idle_looks", "after_s"), [(0, 0.0), (1, 0.05), (3, 0.15), (4, 0.2), (1000, 0.2)]
)
def test_the_idle_are_looked_at_less_often_but_in_time(
    monkeypatch: pytest.MonkeyPatch, idle_looks: int, after_s: float
) -> None:
    monkeypatch.setattr(memory_watchdog, "_ROUND_S", 0.05)
    box = Box(idle_looks)
    watchdog = Watchdog({box})
    watchdog._seen_s[box] = 100.0
    assert watchdog._is_due(box, 100.0 + after_s + 0.001)
    assert after_s == 0 or not watchdog._is_due(box, 100.0 + after_s - 0.001)


def test_looks_that_are_dear_leave_most_of_the_loop_to_others() -> None:
    async def run() -> None:
        clock = asyncio.get_running_loop()
        took: list[float] = []

        def look() -> None:
            begun = clock.time()
            while clock.time() - begun < 2 * memory_watchdog._STRETCH_S:
                pass
            took.append(clock.time() - begun)

        live = {Box(on_look=look) for _ in range(5)}
        watchdog = Watchdog(live)
        begun, turns = clock.time(), 0
        watchdog.wake()
        while min(box.looks for box in live) < 3:
            await asyncio.sleep(0)
            turns += 1
        # Behind each of the first two rounds lies a pause; a busy machine makes it longer.
        pauses = 2 * sum(took[: 2 * len(live)])
        assert clock.time() - begun >= sum(took) + pauses
        assert turns >= 3 * len(live)
        await watchdog.aclose()

    asyncio.run(run())


def test_it_begins_again_with_the_next_sandbox() -> None:
    async def run() -> None:
        live: set[Box] = set()
        watchdog = Watchdog(live)
        for _ in range(2):
            looked = asyncio.Event()
            live.add(Box(on_look=looked.set))
            watchdog.wake()
            await looked.wait()
            task = watchdog._task
            assert task is not None
            live.clear()
            await task
        await watchdog.aclose()

    asyncio.run(run())
