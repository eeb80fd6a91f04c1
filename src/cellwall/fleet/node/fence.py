"""Fence: ends a node whose driver is silent, from inside if that works, else by the guard.

`NodeActor` has one. Pings renew it on a thread of their own, because an engine that is short of CPU
is no lost one; one whose loop hangs is. The
invariant: once the lease has ended nothing begins any longer, and no sandbox is left `HARD_S`
seconds later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from cellwall.fleet.node import guard
from cellwall.fleet.node.lease import Lease, boot_s
from cellwall.model.errors import HostUnsupported

HARD_S = 1.5
"""Seconds after the end of a lease until the guard kills the actor."""
_LOOK_S = 0.25
_STUCK_S = 60.0
"""Seconds after which an engine whose loop does nothing is no longer kept alive by pings."""
_READY_S = 20.0


class Fence:
    """The fence of one node."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._guard: subprocess.Popen[bytes] | None = None
        self._deadlines_w = -1
        self._pulse_at = boot_s()

    async def set_up(self) -> None:
        """Start the guard. Raises HostUnsupported if it does not start."""
        deadlines_r, self._deadlines_w = os.pipe()
        os.set_blocking(self._deadlines_w, False)
        try:
            self._guard = await asyncio.to_thread(self._started, deadlines_r)
        finally:
            os.close(deadlines_r)

    def _started(self, deadlines_r: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(os.getpid())]
        ready_r, ready_w = os.pipe()
        with os.fdopen(ready_r, "rb") as ready:
            try:
                made = subprocess.Popen(
                    [*argv, str(self._hard_ns)],
                    stdin=deadlines_r,
                    stdout=ready_w,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            finally:
                os.close(ready_w)
            if ready.readline() != guard.READY:
                made.kill()
                made.wait(_READY_S)
                raise HostUnsupported(
                    "pidfd",
                    "fence: the guard of this node did not start",
                    remedy="run a kernel of 5.4 or later on that node",
                )
        return made

    @property
    def _hard_ns(self) -> int:
        return int((self._lease.ends_at + HARD_S) * 1e9)

    def renew(self, number: int, heard: int) -> None:
        """Note a ping, and tell the guard until when the lease goes now."""
        self._lease.answer(number, heard)
        # A full pipe means that the guard is stopped; the earlier end holds then.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._deadlines_w, struct.pack(">q", self._hard_ns))

    async def watch(self, on_end: Callable[[], Awaitable[None]]) -> None:
        """Wait for the end of the lease, then do `on_end`; runs on the engine's loop."""
        while (left_s := self._lease.left_s) > 0:
            self._pulse_at = boot_s()
            await asyncio.sleep(min(left_s, _LOOK_S))
        await on_end()

    @property
    def is_stuck(self) -> bool:
        """Whether the engine's loop has stood still for long."""
        return boot_s() - self._pulse_at > _STUCK_S

    @property
    def has_ended(self) -> bool:
        """Whether the lease is over."""
        return self._lease.left_s <= 0

    def lower(self) -> None:
        """End the guard, at a clean end of the node."""
        if self._guard is not None:
            os.close(self._deadlines_w)
            self._guard.wait(_READY_S)
            self._guard = None
