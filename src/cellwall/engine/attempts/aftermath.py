"""Aftermath of a limit in a sandbox that lives on: attribute kills and end what broke the limit.

Used by `attempt`. The kernel counts kills for a whole sandbox; its data on each process tell which
execution a killed process belonged to. The invariant: a kill explains the end of at most one
execution, and never of an execution whose end it cannot have caused.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cellwall.engine.attempts.verdicts import Cause
from cellwall.model.outcome import Verdict
from cellwall.runtimes.channel.replies import REPLY, ChannelLost, GuestRefused, Reply, Single

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.model.limits import Limits
    from cellwall.runtimes.base import KernelReadings

ENDING_S = 3.0
"""Seconds for the guest to kill a process family and confirm its end; the guest gives up earlier by
itself."""
_ASKING_S = 1.0
_LEAST_ROOM_BYTES = 16 << 20
"""Bytes for init and an interpreter, beside the files."""

_UNKNOWN = (
    "a process of this sandbox was killed at its memory limit meanwhile; "
    "the kernel does not say of what execution or command it was"
)

_CROWDED_OUT = (
    "another execution or command of this sandbox had most of its processes, and was ended"
)


class _NotEnded(Exception):
    """Some processes of an execution are still there."""


class Aftermath:
    """Aftermath of one execution or command."""

    def __init__(
        self, live: ClaimedSandbox, recorder: Recorder, before: KernelReadings, limits: Limits
    ) -> None:
        """Begin with the execution; `before` are the kernel's counts at that moment."""
        self._live = live
        self._recorder = recorder
        self._before = before
        self._limits = limits
        self._claimed_before = live.claimed_kills
        self._unknown_before = live.unknown_kills
        self._family: asyncio.Future[Reply] | None = None
        """Future that is done when all of the execution's processes have ended, if they were killed
        for it."""
        self.is_crowd = False
        """Whether most of the sandbox's processes belonged to this execution and were ended for
        that."""
        self._is_crowded_out = False
        self.notes: tuple[str, ...] = ()

    # -- memory ----------------------------------------------------------------------------

    async def kills(self, now: int) -> int:
        """Return how many of the `now` memory kills hit this execution; each counts only once."""
        if not now:
            return 0
        live, recorder = self._live, self._recorder
        unclaimed = now - live.claimed_kills
        if recorder.cause in (Cause.LOST, Cause.HOSTILE):
            return unclaimed  # of all executions that ran in it
        others = [each.number for each in live.running]
        if recorder.done.get("signal") == signal.SIGKILL and recorder.cause is Cause.ITSELF:
            mine = min(unclaimed, 1) if others else unclaimed
        else:
            mine = now - self._before.oom_kills - (live.claimed_kills - self._claimed_before)
            # Where memory is held softly, a kill ends an execution with all its processes; this one
            # went on, so it was not hit.
            if mine <= 0 or live.isolation.hardness.get("memory_mb") == "soft":
                return 0
            unknown = live.unknown_kills - self._unknown_before
            # already reported as unknown to another execution, which ended first
            if mine <= unknown:
                self.notes += (_UNKNOWN,)
                return 0
            if others and not await self._is_certainly_mine(others):
                self.notes += (_UNKNOWN,)
                live.unknown_kills = max(live.unknown_kills, self._unknown_before + mine)
                return 0
        live.claimed_kills += max(0, mine)
        return max(0, mine)

    async def _is_certainly_mine(self, others: Collection[int]) -> bool:
        """Report whether a killed process that led no family belonged to this execution.

        Only a process with children can have lost one. An execution that is about to end may have
        had some.
        """
        try:
            async with asyncio.timeout(_ASKING_S):
                reply = await self._live.channel.request("kin")
        except (TimeoutError, GuestRefused, ChannelLost):
            return False
        childless = reply.header.get("childless")
        if not isinstance(childless, list):
            return False
        return self._recorder.number not in childless and all(o in childless for o in others)

    # -- processes -------------------------------------------------------------------------

    async def thin(self) -> None:
        """End the largest family if it has half of all processes: until then, none can start."""
        with self._ending():
            least = max(1, self._limits.processes // 2)
            header = await _answer(self._live.channel.request("thin", least=least))
            if header.get("found"):
                self.is_crowd = header.get("of") == self._recorder.number
                self._is_crowded_out = not self.is_crowd

    # -- its end ---------------------------------------------------------------------------

    @property
    def has_ended_it(self) -> bool:
        """Whether its processes have been killed, those of a living context included."""
        return self.is_crowd or self._family is not None

    def begin_end(self) -> None:
        """Have the guest kill every process of its family. Raises `ChannelLost`."""
        gone: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        gone.add_done_callback(_note)
        of = {"of": self._recorder.number}
        self._live.channel.open("end", Single(gone, None), REPLY, of)
        self._family = gone

    async def end_rest(self, verdict: Verdict) -> None:
        """In a sandbox that lives on, end what broke a limit with all its processes."""
        is_broken = verdict is Verdict.MEMORY and not self._recorder.done.get("alive")
        is_broken |= verdict is Verdict.PROCESSES and not self._is_crowded_out
        with self._ending():
            _check_remains(self._recorder.done)
            if is_broken and not self.has_ended_it:
                self.begin_end()
            if self._family is not None:
                await _answer(asyncio.shield(self._family))
        if verdict is Verdict.MEMORY:
            self._check_work_area()
        if self._is_crowded_out:
            self.notes += (_CROWDED_OUT,)

    def _check_work_area(self) -> None:
        """Kill the sandbox if its files alone fill its memory: the next code would be killed."""
        room = self._limits.memory_bytes - self._live.readings().work_bytes
        if self._live.is_alive and room < max(_LEAST_ROOM_BYTES, self._limits.memory_bytes // 8):
            why = f"files in its work area fill its memory limit of {self._limits.memory_mb} MiB"
            self.notes += (f"{why}, so the whole sandbox was ended",)
            self._live.kill(why)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Kill the sandbox if the block finds a process that cannot be ended otherwise."""
        try:
            yield
        except ChannelLost:
            return  # then the whole sandbox has ended
        except _NotEnded as error:
            self.notes += (f"{error}, so the whole sandbox was ended",)
            self._live.kill(f"a program broke a limit, and {error}")


async def _answer(asked: Awaitable[Reply]) -> Mapping[str, Any]:
    """Return the guest's report on the end of processes; `_NotEnded` if they remain."""
    try:
        async with asyncio.timeout(ENDING_S):
            header = (await asked).header
    except (TimeoutError, GuestRefused) as error:
        raise _NotEnded("the guest does not say that its processes have ended") from error
    _check_remains(header)
    return header


def _check_remains(header: Mapping[str, Any]) -> None:
    remains = header.get("remains")
    if remains:
        raise _NotEnded(f"{remains!s:.20} of its processes could not be stopped")


def _note(gone: asyncio.Future[Reply]) -> None:
    if not gone.cancelled():
        gone.exception()  # the end of the channel reports the same
