"""What others feel beside sandboxes that say much, and beside as many that only compute.

Used by the attack tests of words. Witnesses are others' one-shots, in turns quiet, beside floods
and beside burners. Every flood tells of what it got rid of, so that one that did not happen is no
proof; it waits, as a rule, because nobody takes more.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable

from kit.arena import LIMITS, Arena

_TURNS = 3
_STRETCH_S = 0.4
_MOST_BESIDE_ONE = 3.0
_MOST_OF_BURNERS = 1.5
_LEAST_S = 0.005
"""What a factor of nearly nothing would be too strict about."""

BURN = "while True: pass\n"
"""It says nothing, and uses all of its share."""


async def _latencies_s(arena: Arena) -> list[float]:
    found: list[float] = []
    while sum(found) < _STRETCH_S:
        began = time.perf_counter()
        ended = await arena.engine.run(f"print({len(found)})", limits=LIMITS, timeout=30)
        assert ended.stdout == f"{len(found)}\n", ended
        found.append(time.perf_counter() - began)
    return found


class Beside:
    """Programs under way."""

    def __init__(self, count: int) -> None:
        self.up = asyncio.Event()
        self._heard = [0] * count

    def hears(self, number: int, text: str) -> None:
        """One of them has said something."""
        self._heard[number] += text.count("\n")
        if all(self._heard):
            self.up.set()

    @property
    def least(self) -> int:
        """How often the quietest was heard."""
        return min(self._heard)


Start = Callable[[], contextlib.AbstractAsyncContextManager[Beside]]
"""Has some at work meanwhile."""


async def _compared(arena: Arena, flood: Start, burner: Start) -> tuple[float, float, float]:
    """Medians: quiet, beside floods, beside burners."""
    quiet, floods, burners = [], [], []
    await _latencies_s(arena)  # the first ones are slower anywhere
    for _ in range(_TURNS):
        quiet += await _latencies_s(arena)
        async with flood() as beside:
            floods += await _latencies_s(arena)
            assert beside.least > 2, "a flood did not happen"
        async with burner():
            burners += await _latencies_s(arena)
    return statistics.median(quiet), statistics.median(floods), statistics.median(burners)


def missed(arena: Arena, flood: Start, burner: Start, *, is_one: bool = True) -> list[str]:
    """Return what was measured if floods cost others too much; nothing if they do not.

    Once more if need be: something else that begins in the middle looks like the flood.
    """
    said = []
    for _ in range(3):
        quiet_s, flood_s, burner_s = arena.do(_compared(arena, flood, burner))
        is_near = not is_one or flood_s <= _MOST_BESIDE_ONE * max(quiet_s, _LEAST_S)
        if is_near and flood_s <= _MOST_OF_BURNERS * max(burner_s, _LEAST_S):
            return []
        said.append(f"quiet {quiet_s:.4f} s, floods {flood_s:.4f} s, burners {burner_s:.4f} s")
    return said
