"""Deadlines: the two clocks of one execution, wall time and the CPU time of its processes.

They do not stop the execution: they call back once, with the cause. The wall clock is a timer. CPU
time is read from the kernel, and only as often as it could have run out: with a share of `cpus`, at
least `remaining / cpus` seconds pass before the budget is used up. Where others run in the same
sandbox, `cpu_share` says which part belongs to this execution; the total is checked first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cellwall.engine.attempts.verdicts import Cause
from cellwall.model.limits import Limits

if TYPE_CHECKING:
    from cellwall.engine.attempts.cpu_share import Share

_FLOOR_S = 0.02
"""Seconds of the shortest pause between two readings; also the most CPU time one core can overrun
by."""
_FIRST_LOOK_S = 0.1
"""Seconds before the first look at others: a shorter execution asks for none."""
_SHARE_FLOOR_S = 0.05
"""Seconds of the shortest pause between two looks at others, which cost the guest more than a
reading."""


class Deadlines:
    """The clocks of one execution, from the moment its code was handed over."""

    __slots__ = (
        *("_base_s", "_cpu", "_is_based", "_limits", "_loop", "_on_breach", "_read_cpu_s"),
        *("_has_cpu", "_held_s", "_share", "_wall"),
    )

    def __init__(
        self,
        limits: Limits,
        read_cpu_s: Callable[[], float],
        base_s: float,
        on_breach: Callable[[Cause], None],
        share: Share | None = None,
        left_s: float | None = None,
    ) -> None:
        """`base_s` is the result of `read_cpu_s` before the code ran. The clocks start now.

        `left_s` is the wall time that is left of a work that began in an earlier process.
        """
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._read_cpu_s = read_cpu_s
        self._base_s = base_s
        self._on_breach = on_breach
        self._share = share
        self._held_s: float | None = None
        """Seconds of wall time left while both clocks stand still; None while they run."""
        self._is_based = share is None
        """Whether a first look at others exists, against which the next look can be compared."""
        wall_s = limits.wall_s if left_s is None else left_s
        self._wall = self._loop.call_later(wall_s, self._breach, Cause.WALL)
        # If the wall clock certainly runs out first, the CPU clock is not needed.
        self._cpu: asyncio.TimerHandle | None = None
        pause_s = limits.cpu_s / limits.cpus
        self._has_cpu = pause_s < limits.wall_s
        if self._has_cpu:
            if share is not None:
                pause_s = min(_FIRST_LOOK_S, pause_s)
            self._cpu = self._loop.call_later(max(_FLOOR_S, pause_s), self._check)

    def _next(self, remaining_s: float, floor_s: float = _FLOOR_S) -> None:
        pause = max(floor_s, remaining_s / self._limits.cpus)
        self._cpu = self._loop.call_later(pause, self._check)

    def _spent_s(self) -> float:
        total_s = self._read_cpu_s() - self._base_s
        return total_s if self._share is None else self._share.of(total_s)

    def _check(self) -> None:
        remaining_s = self._limits.cpu_s - self._spent_s()
        if self._share is not None and (remaining_s <= 0 or not self._is_based):
            self._is_based, self._cpu = True, None
            self._share.ask(self._judge)
        elif remaining_s <= 0:
            self._breach(Cause.CPU)
        else:
            self._next(remaining_s)

    def _judge(self) -> None:
        """Decide after a look at others, or after its failure."""
        if self._wall.cancelled():
            return  # the execution has ended meanwhile, or is held
        remaining_s = self._limits.cpu_s - self._spent_s()
        if remaining_s <= 0:
            self._breach(Cause.CPU)
        else:
            self._next(remaining_s, _SHARE_FLOOR_S)

    @property
    def left_s(self) -> float:
        """Seconds of wall time that are left."""
        return (
            max(0.0, self._wall.when() - self._loop.time())
            if self._held_s is None
            else self._held_s
        )

    @property
    def is_held(self) -> bool:
        """Whether both clocks stand still."""
        return self._held_s is not None

    @property
    def cpu_before_s(self) -> float:
        """CPU seconds of the sandbox before the code ran."""
        return self._base_s

    def hold(self) -> None:
        """Let both clocks stand still, because the sandbox does; idempotent."""
        if self._held_s is None and not self._wall.cancelled():
            self._held_s = max(0.0, self._wall.when() - self._loop.time())
            self.stop()

    def go_on(self) -> None:
        """Undo `hold`."""
        if self._held_s is not None:
            self._wall = self._loop.call_later(self._held_s, self._breach, Cause.WALL)
            self._held_s = None
            if self._has_cpu:
                self._cpu = self._loop.call_later(_FLOOR_S, self._check)

    def _breach(self, cause: Cause) -> None:
        self.stop()
        self._on_breach(cause)

    def stop(self) -> None:
        """Stop both clocks; idempotent. After `hold`, `go_on` starts them again."""
        self._wall.cancel()
        if self._cpu is not None:
            self._cpu.cancel()
