"""The two clocks of one execution: wall time and the CPU time of its whole tree.

Not the stopping itself: it calls back once, with the cause. The wall clock is a timer. CPU time
is read from the kernel, and never more often than it could have run out: with a share of `cpus`,
`remaining / cpus` seconds must pass before the budget can be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cellwall.engine.verdicts import Cause
from cellwall.model.limits import Limits

_FLOOR_S = 0.02
"""Shortest pause between two readings; also the most CPU time one core can overrun by."""


class Deadlines:
    """Watches one execution from the moment its code was handed over."""

    __slots__ = ("_base_s", "_cpu", "_limits", "_loop", "_on_breach", "_read_cpu_s", "_wall")

    def __init__(
        self,
        limits: Limits,
        read_cpu_s: Callable[[], float],
        base_s: float,
        on_breach: Callable[[Cause], None],
    ) -> None:
        """`base_s` is what `read_cpu_s` gave before the code ran. The clocks start now."""
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._read_cpu_s = read_cpu_s
        self._base_s = base_s
        self._on_breach = on_breach
        self._wall = self._loop.call_later(limits.wall_s, self._breach, Cause.WALL)
        # Where the wall clock is sure to ring first there is no need for the other one.
        self._cpu: asyncio.TimerHandle | None = None
        if limits.cpu_s / limits.cpus < limits.wall_s:
            self._next(limits.cpu_s)

    def _next(self, remaining_s: float) -> None:
        pause = max(_FLOOR_S, remaining_s / self._limits.cpus)
        self._cpu = self._loop.call_later(pause, self._check)

    def _check(self) -> None:
        remaining = self._limits.cpu_s - (self._read_cpu_s() - self._base_s)
        if remaining <= 0:
            self._breach(Cause.CPU)
        else:
            self._next(remaining)

    def _breach(self, cause: Cause) -> None:
        self.stop()
        self._on_breach(cause)

    def stop(self) -> None:
        """Stop both clocks; idempotent."""
        self._wall.cancel()
        if self._cpu is not None:
            self._cpu.cancel()
