"""Shedding: have the guest end the processes that broke a limit no host kernel holds for them.

For runtimes whose host sees a sandbox as a whole: gVisor (one process to the host's kernel) and
`process` (no cgroup). The host detects the excess by its own kernel's figures; only the guest can
tell which processes caused it. The invariant: a kill is counted before its victim's end is
reported, and if the guest does not help in time, its sandbox is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cellwall.runtimes.channel.replies import REPLY, ChannelLost, Reply, Single

if TYPE_CHECKING:
    from cellwall.linux.cgroups.sandbox_groups import Groups
    from cellwall.runtimes.channel.channel import GuestChannel

_MIB = 1 << 20
ROOM_MB = 128
"""MiB beyond the limit of a session in gVisor: room to end the culprit before the whole sandbox
ends."""
_PATIENCE_S = 2.0
"""Seconds for the guest to answer; on a host short of CPU it may have to wait."""
_SETTLE_S = 0.5
"""Seconds for memory and process slots of ended processes to be released."""
_MOST_S = 0.2
_LEAST_S = 0.01
_NEAR_BYTES = ROOM_MB * _MIB // 4
"""Bytes above the limit at which the next look comes at the latest, whatever grows there."""
_GROWTH = 2048 * _MIB
"""Bytes in a second that a program may fill."""


class Shedding:
    """Shedding for one sandbox and one kind of limit."""

    def __init__(
        self, op: str, on_ended: Callable[[], None], on_hopeless: Callable[[], None]
    ) -> None:
        """`on_ended` is called before a family ends; `on_hopeless` if none can be ended."""
        self._op = op
        self._on_ended = on_ended
        self._on_hopeless = on_hopeless
        self._asked_s = 0.0
        self._answer: asyncio.Future[Reply] | None = None

    def forgive(self) -> None:
        """Count the guest's patience anew: it could not answer."""
        self._asked_s = asyncio.get_running_loop().time()

    def over(self, channel: GuestChannel, least: int) -> None:
        """Have the largest family ended if it has at least `least`: the limit is exceeded now."""
        loop = asyncio.get_running_loop()
        if self._answer is not None:
            if loop.time() - self._asked_s > _PATIENCE_S:
                self._on_hopeless()
            return
        if loop.time() - self._asked_s < _SETTLE_S or not channel.is_open:
            return
        self._asked_s = loop.time()
        self._answer = loop.create_future()
        self._answer.add_done_callback(self._note)
        try:
            channel.open(self._op, Single(self._answer, None), REPLY, {"least": max(1, least)})
        except ChannelLost as lost:
            self._answer.set_exception(lost)

    def _note(self, answer: asyncio.Future[Reply]) -> None:
        self._answer = None
        self._asked_s = asyncio.get_running_loop().time()
        if answer.cancelled() or isinstance(answer.exception(), ChannelLost):
            return  # the whole sandbox has ended
        if answer.exception() is None and answer.result().header.get("found"):
            self._on_ended()
        else:
            self._on_hopeless()


class MemoryWatch:
    """Watch on the memory of a sandbox with a kernel of its own, more frequent near the limit."""

    def __init__(
        self,
        channel: GuestChannel,
        groups: Groups,
        own_bytes: int,
        limit_bytes: int,
        on_hopeless: Callable[[], None],
    ) -> None:
        """Above the limit a family is ended; at `ROOM_MB` more the host's kernel ends all.

        `own_bytes` of what `groups` count are an allowance for the sandbox's kernel.
        """
        self._channel = channel
        self._groups = groups
        self._own_bytes = own_bytes
        self._limit_bytes = limit_bytes
        self._shedding = Shedding("shed", self._count, on_hopeless)
        self.kills = 0
        """Number of families that were ended."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(_MOST_S, self._look)

    def _count(self) -> None:
        self.kills += 1

    def _look(self) -> None:
        if not self._channel.is_open:
            self._timer = None
            return
        now = self._used_bytes()
        if now > self._limit_bytes:
            # A family with less than a quarter is not the cause: files may be, for one.
            least = max(now - self._limit_bytes, self._limit_bytes // 4)
            self._shedding.over(self._channel, least)
        left = self._limit_bytes + _NEAR_BYTES - now
        pause_s = min(_MOST_S, max(_LEAST_S, left / _GROWTH))
        self._timer = self._loop.call_later(pause_s, self._look)

    def _used_bytes(self) -> int:
        """Return the programs' bytes; the host's file cache is read above the limit only."""
        now = self._groups.memory()[0] - self._own_bytes
        return now - self._groups.cached_bytes() if now > self._limit_bytes else now

    def go_on(self) -> None:
        """Watch again after `stop`."""
        self._shedding.forgive()
        if self._timer is None and self._channel.is_open:
            self._timer = self._loop.call_later(_LEAST_S, self._look)

    def stop(self) -> None:
        """Stop watching; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
