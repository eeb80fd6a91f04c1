"""What a limit leaves to do in a sandbox that lives on: whose kill it was, and what has to end.

Used by `attempt`. The kernel counts kills for a whole sandbox; what it says of each process tells
whose they were. The invariant: a kill is the reason of one execution's end at most, and one that
cannot have been the cause of it never is.
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
    from cellwall.engine.attempts.claimed_sandbox import Live
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.model.limits import Limits
    from cellwall.runtimes.base import KernelReadings

ENDING_S = 3.0
"""For the guest to kill a family and see that it is gone; it gives up before that by itself."""
_ASKING_S = 1.0
_LEAST_ROOM_BYTES = 16 << 20
"""For init and an interpreter, beside the files."""

_UNKNOWN = (
    "a process of this sandbox was killed at its memory limit meanwhile; "
    "the kernel does not say of what execution or command it was"
)

_CROWDED_OUT = (
    "another execution or command of this sandbox had most of its processes, and was ended"
)


class _NotEnded(Exception):
    """Processes of an execution are still there."""


class Aftermath:
    """Of one execution or command."""

    def __init__(
        self, live: Live, recorder: Recorder, before: KernelReadings, limits: Limits
    ) -> None:
        """`before` is what the kernel had counted when it began: now."""
        self._live = live
        self._recorder = recorder
        self._before = before
        self._limits = limits
        self._claimed_before = live.claimed_kills
        self._unknown_before = live.unknown_kills
        self._family: asyncio.Future[Reply] | None = None
        """Done when all of its processes have ended, if they were killed for it."""
        self.is_crowd = False
        """Most of all processes were its own, and were ended for that."""
        self._is_crowded_out = False
        self.notes: tuple[str, ...] = ()

    # -- memory ----------------------------------------------------------------------------

    async def kills(self, now: int) -> int:
        """How many of the `now` kills for memory were its own; none is two's."""
        if not now:
            return 0
        live, recorder = self._live, self._recorder
        unclaimed = now - live.claimed_kills
        if recorder.cause in (Cause.LOST, Cause.HOSTILE):
            return unclaimed  # of all who were in it
        others = [each.number for each in live.running]
        if recorder.done.get("signal") == signal.SIGKILL and recorder.cause is Cause.ITSELF:
            mine = min(unclaimed, 1) if others else unclaimed
        else:
            mine = now - self._before.oom_kills - (live.claimed_kills - self._claimed_before)
            # What is held softly is ended with all that belongs to it, and this went on.
            if mine <= 0 or live.isolation.hardness.get("memory_mb") == "soft":
                return 0
            unknown = live.unknown_kills - self._unknown_before
            if mine <= unknown:  # told as such to another, which ended first
                self.notes += (_UNKNOWN,)
                return 0
            if others and not await self._is_certainly_mine(others):
                self.notes += (_UNKNOWN,)
                live.unknown_kills = max(live.unknown_kills, self._unknown_before + mine)
                return 0
        live.claimed_kills += max(0, mine)
        return max(0, mine)

    async def _is_certainly_mine(self, others: Collection[int]) -> bool:
        """Whether a killed process that led nothing was of this and not of the `others`.

        Only what has children can have lost one. What is about to end may have had some.
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
        """End whatever has half of all processes: until then, nothing else can begin."""
        with self._ending():
            least = max(1, self._limits.processes // 2)
            header = await _answer(self._live.channel.request("thin", least=least))
            if header.get("found"):
                self.is_crowd = header.get("of") == self._recorder.number
                self._is_crowded_out = not self.is_crowd

    # -- its end ---------------------------------------------------------------------------

    @property
    def has_ended_it(self) -> bool:
        """Whether its processes have been killed, a living context's as well."""
        return self.is_crowd or self._family is not None

    def begin_end(self) -> None:
        """Have every process of its family killed. Raises `ChannelLost`."""
        gone: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        gone.add_done_callback(_note)
        of = {"of": self._recorder.number}
        self._live.channel.open("end", Single(gone, None), REPLY, of)
        self._family = gone

    async def end_rest(self, verdict: Verdict) -> None:
        """In a sandbox that lives on, end what broke a limit with all that belongs to it."""
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
        """Kill the sandbox where its files alone fill its memory: whatever ran next would end."""
        room = self._limits.memory_bytes - self._live.readings().work_bytes
        if self._live.is_alive and room < max(_LEAST_ROOM_BYTES, self._limits.memory_bytes // 8):
            why = f"files in its work area fill its memory limit of {self._limits.memory_mb} MiB"
            self.notes += (f"{why}, so the whole sandbox was ended",)
            self._live.kill(why)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Kill the sandbox if the block finds that a process cannot be ended otherwise."""
        try:
            yield
        except ChannelLost:
            return  # then nothing is left of the whole sandbox
        except _NotEnded as error:
            self.notes += (f"{error}, so the whole sandbox was ended",)
            self._live.kill(f"a program broke a limit, and {error}")


async def _answer(asked: Awaitable[Reply]) -> Mapping[str, Any]:
    """Return what the guest says has ended; `_NotEnded` if it has not."""
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
        gone.exception()  # the end of the channel says the same
