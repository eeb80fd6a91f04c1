"""How much of everybody's loop one sandbox's words may take.

Used by those who read what an inside says (`channel`, and `connections` over `lazy_loop`). Frames
are taken apart on the one loop that all sandboxes, callers and deadlines share, while saying one
costs the inside next to nothing; so the time that it takes here is metered, whatever kind of frame
it is. Not a bound on how much is kept: that is the listeners'.

The invariant: nobody is heard for longer than a turn (`TURN_S`, or one frame) at a stretch, and all
who say much, together, for no more than `SHARE` of the time; the more they are, the nearer to
`MANY_SHARE`. Their sockets fill, and they wait: what they say costs their own share. A few
milliseconds, and the answer to each request of ours, are free.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.001
"""Of the loop's time, at a stretch; one frame may take longer."""
SHARE = 0.1
"""Of the loop's time, for one who says much while nobody else does."""
MANY_SHARE = 0.05
"""Of the loop's time, for very many together: where they are, processors are short, and the loop's
time is dearer to others."""
_QUIET_SHARE = 0.002
"""For each that does not: who says more than that for long is one of the others."""
BURST_S = 0.005
"""Of the loop's time at once: some hundred ordinary frames, or displays of a few MiB. Many who
begin together have as many bursts."""
GRANT_S = 0.002
"""For each request of ours: its answer is no flood."""
_FRAME_S = 0.0001
_LINE_S = 0.00001
_BYTE_S = 2e-9
"""At most so much is taken down for a frame and each byte of it, and what taking its JSON apart
took: what a caller's callback does is nothing that the inside has said."""
LARGE_BYTES = 512
"""JSON of more than that is timed (`timed`): a byte takes from 2 to 800 ns. What less takes is in
the frame's."""


class Hearing:
    """The account of one sandbox."""

    __slots__ = ("_at", "_is_closed", "_is_loud", "_left_s")
    _loud = 0
    """How many of all have said more than they may."""
    apart_s = 0.0
    """Processor time that large JSON of all insides has taken, ever; a turn takes down what it
    added."""

    def __init__(self) -> None:
        """All may still be said."""
        self._left_s = BURST_S
        self._at = 0.0
        self._is_loud = self._is_closed = False

    def spend(
        self, now: float, spent_s: float, frames: int, nbytes: int, apart_s: float = 0.0
    ) -> float:
        """Take down a turn; return how long to hear nothing more, in seconds.

        `spent_s` is processor time (`thread_time`): a busy machine says nothing. `apart_s` of it
        went into large JSON (`Hearing.apart_s`).
        """
        share = _share_of_one() if self._is_loud else _QUIET_SHARE
        saved = min(BURST_S, self._left_s + (now - self._at) * share)
        self._left_s = saved - min(spent_s, frames * _FRAME_S + nbytes * _BYTE_S + apart_s)
        self._at = now
        if self._left_s >= BURST_S / 2:
            self._fall_silent()
        elif self._left_s < 0 and not self._is_loud and not self._is_closed:
            self._is_loud = True
            Hearing._loud += 1
        if self._left_s >= 0 or self._is_closed:
            return 0.0
        return -self._left_s / _share_of_one()

    def spend_lines(self, now: float, count: int) -> float:
        """The same for lines that their reader takes apart later, each for about as long."""
        return self.spend(now, count * _LINE_S, count, 0)

    def grant(self) -> None:
        """Something was asked for."""
        self._left_s = min(BURST_S, self._left_s + GRANT_S)

    def close(self) -> None:
        """It will say nothing more; what is taken down later is its last."""
        self._is_closed = True
        self._fall_silent()

    def _fall_silent(self) -> None:
        if self._is_loud:
            self._is_loud = False
            Hearing._loud -= 1


def timed(decode: Callable[[bytes], T], text: bytes) -> T:
    """Return `decode(text)`; the processor time that a large text takes counts for this turn."""
    if len(text) <= LARGE_BYTES:
        return decode(text)
    began_s = time.thread_time()
    try:
        return decode(text)
    finally:
        Hearing.apart_s += time.thread_time() - began_s


def _share_of_one() -> float:
    """Of the loop's time, for each of those who say much."""
    # One at least: engines on loops of other threads count here, too, and without a lock.
    loud = max(1, Hearing._loud)
    return (MANY_SHARE + (SHARE - MANY_SHARE) / loud) / loud
