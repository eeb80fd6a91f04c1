"""Loop share: how much of the shared event loop's time the frames of one sandbox may use.

Used by code that reads a sandbox's data (`channel`, and `connections` over `lazy_loop`). Frames are
parsed on the one loop that all sandboxes, callers and deadlines share, while sending one costs the
sandbox next to nothing; so the parsing time is metered, whatever the kind of frame. It does not
bound the data kept: the listeners do.

The invariant: no sandbox is read for longer than a turn (`TURN_S`, or one frame) at a stretch, and
all sandboxes that send much, together, for no more than `SHARE` of the time; the more they are, the
nearer to `MANY_SHARE`. Their sockets fill, and they wait: sending costs them their own share. A few
milliseconds, and the answer to each request of the engine, are free.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TURN_S = 0.001
"""Seconds of the loop's time at a stretch; one frame may take longer."""
SHARE = 0.1
"""Share of the loop's time for one sandbox that sends much while no other does."""
MANY_SHARE = 0.05
"""Share of the loop's time for very many such sandboxes together: with many, processors are scarce
and other tasks need the loop's time more."""
_QUIET_SHARE = 0.002
"""Share for each sandbox that does not send much: one that exceeds it for long counts as loud."""
BURST_S = 0.005
"""Seconds of the loop's time at once: some hundred ordinary frames, or displays of a few MiB. Many
sandboxes that begin together have as many bursts."""
GRANT_S = 0.002
"""Seconds added for each request of the engine: its answer is no flood."""
_FRAME_S = 0.0001
_LINE_S = 0.00001
_BYTE_S = 2e-9
"""Maximum seconds charged for each byte, beside `_FRAME_S` for each frame and the measured time of
parsing JSON: time in a caller's callback is not charged to the sandbox."""
LARGE_BYTES = 512
"""Size in bytes above which JSON is timed (`timed`): a byte takes from 2 to 800 ns. The time of
smaller JSON is part of the frame's."""


class Hearing:
    """Time account of one sandbox."""

    __slots__ = ("_at", "_is_closed", "_is_loud", "_left_s")
    _loud = 0
    """Number of sandboxes over their allowance."""
    apart_s = 0.0
    """Seconds of processor time that large JSON of all sandboxes has taken since the start; a turn
    charges the difference."""

    def __init__(self) -> None:
        self._left_s = BURST_S
        self._at = 0.0
        self._is_loud = self._is_closed = False

    def spend(
        self, now: float, spent_s: float, frames: int, nbytes: int, apart_s: float = 0.0
    ) -> float:
        """Charge a turn; return the seconds for which to stop reading.

        `spent_s` is processor time (`thread_time`), so other load on the machine does not count.
        `apart_s` of it went into large JSON (`Hearing.apart_s`).
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
        """Charge lines that their reader parses later, each at a fixed time."""
        return self.spend(now, count * _LINE_S, count, 0)

    def grant(self) -> None:
        """Add the allowance for one request of the engine."""
        self._left_s = min(BURST_S, self._left_s + GRANT_S)

    def close(self) -> None:
        """Close the account: the sandbox sends nothing more, and a later charge is its last."""
        self._is_closed = True
        self._fall_silent()

    def _fall_silent(self) -> None:
        if self._is_loud:
            self._is_loud = False
            Hearing._loud -= 1


def timed(decode: Callable[[bytes], T], text: bytes) -> T:
    """Return `decode(text)`; the processor time of a large text is charged to this turn."""
    if len(text) <= LARGE_BYTES:
        return decode(text)
    began_s = time.thread_time()
    try:
        return decode(text)
    finally:
        Hearing.apart_s += time.thread_time() - began_s


def _share_of_one() -> float:
    """Return the share of the loop's time for each loud sandbox."""
    # At least one: engines on loops of other threads count here, too, and without a lock.
    loud = max(1, Hearing._loud)
    return (MANY_SHARE + (SHARE - MANY_SHARE) / loud) / loud
