"""Meters: the bytes of a sandbox and of one connection, with the limits on them.

Both directions count alike. The invariant: a byte is counted before it is passed on, so that no
limit is exceeded by more than one piece of the relay's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from cellwall.model.network import NetworkPolicy

_BURST_S = 0.25
"""Seconds of a rate that may come at once."""


class LimitReached(Exception):
    """The sandbox has moved as many bytes as its policy allows."""


class SandboxMeter:
    """The bytes of one sandbox, over its life."""

    def __init__(self, policy: NetworkPolicy) -> None:
        """Begin at zero, with the limits of `policy`."""
        self.sent = 0
        self.received = 0
        self._allowance = 0.0
        self._at = time.monotonic()
        self.set(policy)

    def set(self, policy: NetworkPolicy) -> None:
        """Change the limits; what was counted stays counted."""
        self._most = policy.transfer_mb << 20
        self._rate = None if policy.rate_kb_s is None else policy.rate_kb_s << 10

    def check(self) -> None:
        """Raise `LimitReached` if nothing more may pass."""
        if self.sent + self.received >= self._most:
            raise LimitReached(f"the sandbox has moved {self._most >> 20} MiB, its limit")

    def owed_s(self, size: int) -> float:
        """Return the seconds until the rate has room for `size` bytes that are counted already."""
        if self._rate is None:
            return 0.0
        now = time.monotonic()
        most = self._rate * _BURST_S
        self._allowance = min(most, self._allowance + (now - self._at) * self._rate) - size
        self._at = now
        return max(0.0, -self._allowance / self._rate)


@dataclass(slots=True)
class Meter:
    """The bytes of one connection, which count for its sandbox as well."""

    whole: SandboxMeter
    sent: int = 0
    received: int = 0

    def note_sent(self, size: int) -> float:
        """Count bytes from the sandbox to the outside; return the seconds to hold them back.

        Raises `LimitReached`.
        """
        self.whole.check()
        self.sent += size
        self.whole.sent += size
        return self.whole.owed_s(size)

    def note_received(self, size: int) -> float:
        """Count bytes from the outside to the sandbox, as `note_sent` does."""
        self.whole.check()
        self.received += size
        self.whole.received += size
        return self.whole.owed_s(size)

    async def count_sent(self, size: int) -> None:
        """Count bytes as `note_sent` does, and wait as long as it says."""
        if (seconds := self.note_sent(size)) > 0:
            await asyncio.sleep(seconds)

    async def count_received(self, size: int) -> None:
        """Count bytes as `note_received` does, and wait as long as it says."""
        if (seconds := self.note_received(size)) > 0:
            await asyncio.sleep(seconds)
