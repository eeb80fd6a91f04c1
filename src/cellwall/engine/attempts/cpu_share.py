"""CPU share: the CPU time of one execution in a sandbox in which others run, too.

Used by `deadlines`. The kernel counts for the whole sandbox; the guest reports what the others
used, from the kernel's data on each process, and that is subtracted. The invariant: time counts
unless another execution is shown to have used it; without an answer from the guest, all of it
counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.runtimes.channel.replies import REPLY, ChannelLost, Reply, Single

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox

_PATIENCE_S = 1.0


class _Look(NamedTuple):
    """One answer of the guest, in seconds."""

    mine_s: float
    """CPU time of the execution's family, since the family began."""
    others_s: float
    """CPU time of all other families."""
    led_s: float | None
    """CPU time of the family's first process for this execution, if it never had a child."""


class Share:
    """CPU time of one execution or command, which the guest knows by its request number."""

    __slots__ = (
        *("_base", "_is_unanswered", "_latest", "_live", "_looked_at_s", "_number", "known_s"),
    )

    def __init__(self, live: ClaimedSandbox, number: int) -> None:
        self._live = live
        self._number = number
        self._base: _Look | None = None
        self._latest: _Look | None = None
        self._looked_at_s: float | None = None
        """CPU seconds of the sandbox when the latest answer came; None until that is read."""
        self._is_unanswered = False
        self.known_s = 0.0
        """Seconds that the execution had used at the latest look."""

    def of(self, total_s: float) -> float:
        """Return the execution's part of the sandbox's `total_s` CPU seconds by the last answer."""
        if self._is_unanswered:
            self.known_s = total_s
        elif self._base is not None and self._latest is not None:
            if self._looked_at_s is None:
                self._looked_at_s = total_s
            since_s = total_s - self._looked_at_s
            self.known_s = self._part(total_s, since_s, self._base, self._latest)
        else:
            return total_s  # the guest has not been asked yet
        return self.known_s

    def _part(self, total_s: float, since_s: float, base: _Look, latest: _Look) -> float:
        """`since_s` is what the sandbox has used since the latest look."""
        others_s = max(0.0, latest.others_s - base.others_s)
        mine_s = max(0.0, latest.mine_s - base.mine_s)
        # A sandbox with its own kernel (gVisor) also counts waiting for a CPU: the sum of all
        # families exceeds the host's count, and only the proportion is right.
        proportion = mine_s / (mine_s + others_s) if others_s else 1.0
        part_s = max(total_s - others_s, total_s * proportion)
        if latest.led_s is not None and len(self._live.running) > 1:
            # It had no child until then, so none of its use can be missing. The sandbox's use since
            # then counts in full until the next look.
            part_s = min(part_s, latest.led_s + since_s)
        return part_s

    def ask(self, then: Callable[[], None]) -> None:
        """Ask the guest for the others' CPU time; call `then` after the answer or its timeout."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        late = loop.call_later(_PATIENCE_S, answer.cancel)
        answer.add_done_callback(partial(self._note, late, then))
        try:
            self._live.channel.open("spent", Single(answer, None), REPLY, {"of": self._number})
        except ChannelLost:
            answer.cancel()

    def _note(
        self, late: asyncio.TimerHandle, then: Callable[[], None], answer: asyncio.Future[Reply]
    ) -> None:
        late.cancel()
        look = None
        if not answer.cancelled() and answer.exception() is None:
            look = _read(answer.result().header)
        self._is_unanswered = look is None
        if look is not None:
            # an unwaited process that ended drops out of the count; keep its time
            if self._latest is not None:
                look = look._replace(others_s=max(look.others_s, self._latest.others_s))
            self._latest, self._looked_at_s = look, None
            self._base = self._base or look
        then()


def _read(header: Mapping[str, Any]) -> _Look | None:
    mine_us, others_us, led_us = (header.get(name) for name in ("mine_us", "others_us", "led_us"))
    if type(mine_us) is not int or type(others_us) is not int or min(mine_us, others_us) < 0:
        return None
    led_s = led_us / 1e6 if type(led_us) is int and led_us >= 0 else None
    return _Look(mine_us / 1e6, others_us / 1e6, led_s)
