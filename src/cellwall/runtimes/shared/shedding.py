"""Has the guest end what broke a limit that no kernel of the host's holds for parts of a sandbox.

For runtimes whose host sees a sandbox as a whole: gVisor (one process to the host's kernel) and
`process` (no cgroup). The host sees that there is too much, by its own kernel's figures; only the
guest can tell whose it is. The invariant: a kill is counted before its victim's end is told, and
where the guest does not help in time, its sandbox is ended.
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
"""More than the limit of a session in gVisor: to end what broke it before all of it ends."""
_PATIENCE_S = 2.0
"""For the guest to answer; a host that is short of CPU has others to wait for, too."""
_SETTLE_S = 0.5
"""For memory and places of what was ended to be given back."""
_MOST_S = 0.2
_LEAST_S = 0.01
_NEAR_BYTES = ROOM_MB * _MIB // 4
"""How far above the limit the next look comes at the latest, whatever grows there."""
_GROWTH = 2048 * _MIB
"""Bytes in a second that a program may fill."""


class Shedding:
    """Of one sandbox and one kind of limit."""

    def __init__(
        self, op: str, on_ended: Callable[[], None], on_hopeless: Callable[[], None]
    ) -> None:
        """`on_ended` is called before a family ends; `on_hopeless` where none can be ended."""
        self._op = op
        self._on_ended = on_ended
        self._on_hopeless = on_hopeless
        self._asked_s = 0.0
        self._answer: asyncio.Future[Reply] | None = None

    def over(self, channel: GuestChannel, least: int) -> None:
        """Have the family with the most ended, if it has `least`: there is too much now."""
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
            return  # it has ended as a whole
        if answer.exception() is None and answer.result().header.get("found"):
            self._on_ended()
        else:
            self._on_hopeless()


class MemoryWatch:
    """Looks at the memory of a sandbox with a kernel of its own, more often near its limit."""

    def __init__(
        self,
        channel: GuestChannel,
        groups: Groups,
        own_bytes: int,
        limit_bytes: int,
        on_hopeless: Callable[[], None],
    ) -> None:
        """Above the limit a family ends; at `ROOM_MB` more the host's kernel ends them all.

        `own_bytes` of what `groups` count are an allowance for the inside's kernel.
        """
        self._channel = channel
        self._groups = groups
        self._own_bytes = own_bytes
        self._limit_bytes = limit_bytes
        self._shedding = Shedding("shed", self._count, on_hopeless)
        self.kills = 0
        """Families that were ended."""
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
            # What has less than a quarter is not what fills it: files are, for one.
            least = max(now - self._limit_bytes, self._limit_bytes // 4)
            self._shedding.over(self._channel, least)
        left = self._limit_bytes + _NEAR_BYTES - now
        pause_s = min(_MOST_S, max(_LEAST_S, left / _GROWTH))
        self._timer = self._loop.call_later(pause_s, self._look)

    def _used_bytes(self) -> int:
        """What programs use; the host's cache of files is looked up above the limit only."""
        now = self._groups.memory()[0] - self._own_bytes
        return now - self._groups.cached_bytes() if now > self._limit_bytes else now

    def stop(self) -> None:
        """Look no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
