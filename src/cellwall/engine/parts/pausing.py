"""Pauses of a sandbox, and when it ends or pauses by itself.

Used by `sandbox`. While a sandbox is paused its processes use no CPU time, and its deadlines, idle
time and life stand still; a bound of its own ends it. The invariant: what would need an answer of
the guest is never waited for while it cannot answer, so a pause begins only when no execution is
being ended, and every request makes the sandbox resume or is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from cellwall.model.errors import CellwallError, Conflict, SandboxBroken
from cellwall.runtimes.base import PagesOut, Pauses, no_pause

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.engine.policy.pause_choice import PauseChoice
    from cellwall.model.limits import Limits
    from cellwall.model.snapshot import Keep
    from cellwall.surface.shared.tasks import Tasks

T = TypeVar("T")
State = Literal[
    "running", "pausing", "paused", "resuming", "hibernating", "hibernated", "coming_back"
]
_STEADY_S = 10.0
"""Seconds that a pause waits for executions that are being ended; each ends earlier by itself."""
_LOOK_S = 0.005
_LEAST_PAUSE_S = 0.05
_DRIFT_S = 0.05
"""Seconds by which the clocks may differ more than before; beyond that the wall clock was set."""


class Standstill(NamedTuple):
    """The clocks of a paused sandbox, as the next process can read them."""

    since: float
    """When they stopped, in seconds since the epoch."""
    left_s: float
    """Seconds of its life that were left then."""
    used_s: float
    """Seconds of earlier pauses, of those that the bound is for."""
    past_s: float
    """Seconds of all earlier pauses."""


class Hibernation(Protocol):
    """What writes a sandbox down and brings it back, which `engine.state.hibernation` makes."""

    def alone(
        self, keep: Keep, *, is_patient: bool
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold the turn of its session meanwhile; wait for it if `is_patient`."""

    async def put_down(self, *, drop: bool) -> tuple[str, ...]:
        """Write a sandbox down and give its processes up; return what is left behind.

        Nothing is awaited after that. If this raises, it is as it was.
        """

    async def put_down_files(self) -> tuple[str, ...]:
        """Do the same with its files alone: all that runs is left behind."""

    async def forget_session(self) -> tuple[str, ...]:
        """Keep the files alone of one that is hibernated; return what is lost by that."""

    async def settle(self) -> None:
        """Wait until its processes are gone."""

    async def bring_back(self) -> None:
        """Have it go on in fresh processes. If this raises, it is as it was."""


def check_pausing(live: ClaimedSandbox) -> Pauses:
    """Return what pauses the sandbox. Raises HostUnsupported."""
    found = live.runtime_sandbox
    if not isinstance(found, Pauses):
        raise no_pause(live.isolation.runtime)
    found.check_pausing()
    return found


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """Do what only saves memory; the sandbox may have ended."""
    with contextlib.suppress(CellwallError):
        await work


def _nothing() -> None:
    """Do nothing: the default of a callback."""


def _has_ended(_reason: str) -> None:
    """Do nothing: what would be ended has ended."""


class Pausing:
    """The pauses and the time of one sandbox."""

    def __init__(
        self, live: ClaimedSandbox, tasks: Tasks, choice: PauseChoice, end: Callable[[str], None]
    ) -> None:
        """`end` ends the sandbox, with the reason. Its life begins now."""
        self._live = live
        self._tasks = tasks
        self._choice = choice
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._state: State = "running"
        self._turn = asyncio.Lock()
        self._leaving = asyncio.Lock()
        """Held from the wish to hibernate it to its end: a second wish waits for the first."""
        self._waking: asyncio.Task[None] | None = None
        self._doing: set[asyncio.Task[Any]] = set()
        self._since_s = 0.0
        """The loop's time when the present pause began."""
        self._zero_s = 0.0
        """The wall clock's time when the loop's was 0. It stays while the two drift apart, so that
        the end is the same at each look."""
        self._past_s = 0.0
        """Seconds of all earlier pauses."""
        self._used_s = 0.0
        """Seconds of earlier pauses, of those that the bound is for."""
        self._later: list[asyncio.TimerHandle] = []
        """Timers of what saves memory in the present pause."""
        self.hibernation: Hibernation | None = None
        """What hibernates it; None: nothing does."""
        self.stays_because = ""
        """Why the present pause does not become a hibernation; empty: nothing stands against it."""
        self._coming: asyncio.Task[None] | None = None
        self.on_turned: Callable[[], None] = _nothing
        """Called when it has paused, and when it goes on."""
        self._ends_s = self._loop.time() + self._limits.life_s
        self._timer = self._loop.call_later(self._next_look_s(), self._look)

    # -- pauses ----------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether its processes stand still, or are about to."""
        return self._state != "running"

    @property
    def has_paused(self) -> bool:
        """Whether its processes stand still, and no request has come since."""
        return self._state in ("paused", "hibernating") or self.has_hibernated

    @property
    def has_hibernated(self) -> bool:
        """Whether it has no processes."""
        return self._state in ("hibernated", "coming_back")

    @property
    def paused_s(self) -> float:
        """Seconds that its processes have stood still so far."""
        return self._past_s + (self._loop.time() - self._since_s if self.is_paused else 0.0)

    async def pause(self) -> None:
        """Pause it; return when its processes stand still. Nothing happens if it is paused.

        Raises SandboxUnavailable, HostUnsupported, Conflict if an execution does not end in time.
        """
        await self._shielded(self._pause())

    async def pause_again(self, beside: AbstractSet[Recorder]) -> None:
        """Pause what was paused before this process, unless a caller uses it by now.

        What `beside` records has run since then, and was paused with it.
        """
        await self._shielded(self._pause(partial(self._is_asked, beside)))

    async def resume(self) -> None:
        """Let it go on; nothing happens if it runs."""
        self._live.check_alive()
        await self._shielded(self._resume())

    def enter(self) -> None:
        """Note a request: a paused sandbox begins to resume, or refuses."""
        if self._state == "running" or self.has_hibernated:
            return
        if self._waking is None:
            self._check_resume()
        self.wake()

    async def arrive(self) -> None:
        """Do the same, and bring a hibernated sandbox back before. Raises the error of that."""
        while self.has_hibernated:
            if self._coming is None:
                self._check_resume()
            await self._come_back()
        self.enter()

    def _check_resume(self) -> None:
        if self._choice.resume == "manual":
            raise Conflict(
                f"sandbox {self._live.spec.sandbox_id}: it is paused",
                remedy="resume it first, or create sandboxes with resume='auto'",
            )

    def wake(self) -> None:
        """Begin to resume, if it does not run."""
        is_there = self._state == "running" or self.has_hibernated
        if not is_there and self._waking is None:
            self._waking = self._tasks.spawn(self._wake())

    async def _wake(self) -> None:
        try:
            with contextlib.suppress(CellwallError):  # `_resume` has ended the sandbox
                await self._resume()
        finally:
            self._waking = None

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what must not stop half way, also if its caller leaves."""
        return await asyncio.shield(self._begun(work))

    def _begun(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        doing = self._loop.create_task(work)
        self._doing.add(doing)
        doing.add_done_callback(self._note)
        return doing

    def _note(self, doing: asyncio.Task[Any]) -> None:
        self._doing.discard(doing)
        if not doing.cancelled():
            doing.exception()  # its caller may have left

    async def _pause(self, is_unwanted: Callable[[], bool] = bool) -> None:
        async with self._turn:
            self._live.check_alive()
            if self._state in ("paused", "hibernated"):
                return
            pauses = check_pausing(self._live)
            await self._wait_steady()
            if is_unwanted():
                return
            self._hold()
            try:
                await pauses.pause()
            except BaseException as error:
                self._go_on()
                self._live.check_alive()  # its end is the reason
                raise error
            self._live.check_alive()
            self._state = "paused"
            self.on_turned()
            self._save_later()

    def _save_later(self) -> None:
        """Have what saves memory begin later in this pause."""
        for after_s, work in (
            (self._choice.page_out_s, self._page_out),
            (self._choice.hibernate_s, self._hibernate_later),
        ):
            if after_s is not None:
                self._later.append(self._loop.call_later(after_s, work))

    def _page_out(self) -> None:
        found = self._live.runtime_sandbox
        if self._state == "paused" and self._live.is_alive and isinstance(found, PagesOut):
            self._tasks.spawn(_quietly(found.page_out()))

    async def _wait_steady(self) -> None:
        """Wait until no execution is being ended."""
        live, until = self._live, self._loop.time() + _STEADY_S
        while live.ending or any(recorder.is_ended for recorder in live.running):
            if self._loop.time() > until:
                raise Conflict(
                    "pause: an execution in it is being ended", remedy="try again", is_passing=True
                )
            await asyncio.sleep(_LOOK_S)
            live.check_alive()

    async def _resume(self) -> None:
        if not self.has_hibernated:
            async with self._turn:
                await self._thaw()
        if self.has_hibernated:
            await self._come_back()

    async def _thaw(self) -> None:
        if self._state == "running" or self.has_hibernated:
            return
        self._live.check_alive()
        self._state = "resuming"
        try:
            await check_pausing(self._live).resume()
        except CellwallError as error:
            self._live.check_alive()
            self._end(f"it could not be resumed: {error.message}")
            raise SandboxBroken(f"resume: {error.message}", remedy="create a new one") from error
        self._go_on()

    # -- hibernation -----------------------------------------------------------------------

    async def hibernate(self, keep: Keep, *, drop: bool) -> tuple[str, ...]:
        """Write it down and end its processes; return what is left behind.

        Nothing happens if it is hibernated, but that it keeps its files alone if `keep` says so.
        Of a session, what would be left behind is refused as Conflict unless `drop`. Raises as a
        snapshot.
        """
        return await self._shielded(self._hibernate(keep, drop=drop))

    async def _hibernate(
        self, keep: Keep, *, drop: bool, only_paused: bool = False
    ) -> tuple[str, ...]:
        async with self._leaving:
            return await self._put_down(keep, drop=drop, only_paused=only_paused)

    async def _put_down(self, keep: Keep, *, drop: bool, only_paused: bool) -> tuple[str, ...]:
        hibernation = self.hibernation
        self._live.check_alive()
        if hibernation is None:
            return ()
        if self.has_hibernated:
            return await self._kept_less(keep, hibernation)
        async with hibernation.alone(keep, is_patient=not self.is_paused), self._turn:
            self._live.check_alive()
            if self.has_hibernated or (only_paused and self._state != "paused"):
                return ()
            was_paused = self._state == "paused"
            await self._stand_alone()
            try:
                if keep == "files":
                    left = await hibernation.put_down_files()
                else:
                    left = await hibernation.put_down(drop=drop)
            except BaseException:
                await self._stay(is_wanted=was_paused)
                raise
            self._state = "hibernated"
            self._stop_saving()
            self.on_turned()
        await hibernation.settle()
        return left

    async def _kept_less(self, keep: Keep, hibernation: Hibernation) -> tuple[str, ...]:
        """Have a hibernated one forget its session, if only the files are to be kept."""
        if keep == "session":
            return ()
        async with self._turn:
            self._live.check_alive()
            if self._state != "hibernated":
                raise Conflict(
                    f"hibernate: {self._live.spec.sandbox_id}: it has just come back",
                    remedy="try again",
                    is_passing=True,
                )
            return await hibernation.forget_session()

    async def _stand_alone(self) -> None:
        """Let the clocks stand still while the guest can answer."""
        if self._state == "paused":
            await check_pausing(self._live).resume()
            self._live.check_alive()
        else:
            await self._wait_steady()
            self._hold()
        self._state = "hibernating"

    async def _stay(self, *, is_wanted: bool) -> None:
        """Be paused again if that `is_wanted`, and no request has come since; else go on."""
        if is_wanted and self._live.is_alive:
            with contextlib.suppress(CellwallError):
                await self._wait_steady()  # what ran may have ended meanwhile
                if self._waking is None:
                    await check_pausing(self._live).pause()
                    self._state = "paused"
                    return
        if self._live.is_alive:
            self._go_on()

    def _hibernate_later(self) -> None:
        if self._state == "paused" and self._live.is_alive:
            self._tasks.spawn(self._hibernate_alone())

    async def _hibernate_alone(self) -> None:
        """Hibernate a sandbox that is paused; note why if it stays."""
        try:
            await self._hibernate("session", drop=False, only_paused=True)
        except CellwallError as error:
            if self._state == "paused":
                self.stays_because = error.message

    async def _come_back(self) -> None:
        """Bring it back; those who ask at the same time wait for the same."""
        if self._coming is None:
            self._coming = self._begun(self._brought_back())
        await asyncio.shield(self._coming)

    async def _brought_back(self) -> None:
        try:
            async with self._turn:
                self._live.check_alive()
                if self._state != "hibernated" or self.hibernation is None:
                    return
                self._state = "coming_back"
                try:
                    await self.hibernation.bring_back()
                except BaseException:
                    self._state = "hibernated"
                    raise
                self._go_on()
        finally:
            self._coming = None

    def _hold(self) -> None:
        """Let every clock stand still."""
        self._state = "pausing"
        self._since_s = self._loop.time()
        for clock in self._live.clocks:
            clock.hold()
        self._arm(self._choice.paused_s - self._used_s, self._on_too_long)

    def _go_on(self) -> None:
        """Undo `_hold`."""
        paused_s = self._loop.time() - self._since_s
        self._state = "running"
        self._stop_saving()
        self.stays_because = ""
        self._used_s += paused_s
        self._past_s += paused_s
        self._ends_s += paused_s
        self._live.touch()
        for clock in self._live.clocks:
            clock.go_on()
        self.on_turned()
        self._arm(self._next_look_s(), self._look)

    # -- time ------------------------------------------------------------------------------

    @property
    def _limits(self) -> Limits:
        return self._live.spec.limits

    @property
    def left_s(self) -> float:
        """Seconds of its life that are left; they do not pass while it is paused."""
        return self._ends_s - (self._since_s if self.is_paused else self._loop.time())

    @property
    def ends_at(self) -> float:
        """End of its life, in seconds since the epoch; of a paused one, if it resumed now."""
        if self.is_paused:
            return time.time() + self.left_s
        zero_s = time.time() - self._loop.time()
        if abs(zero_s - self._zero_s) > _DRIFT_S:
            self._zero_s = zero_s
        return self._zero_s + self._ends_s

    def extend(self, life_s: float) -> None:
        """Let it live `life_s` seconds from now, without the pauses that follow."""
        self._used_s = 0.0
        if not self.is_paused:
            self._ends_s = self._loop.time() + life_s
            self._arm(self._next_look_s(), self._look)
            return
        # This pause counts from now on.
        now_s = self._loop.time()
        self._past_s += now_s - self._since_s
        self._since_s, self._ends_s = now_s, now_s + life_s
        self._arm(self._choice.paused_s, self._on_too_long)

    def standstill(self) -> Standstill:
        """Return its clocks, which stand still."""
        since = time.time() - (self._loop.time() - self._since_s)
        return Standstill(since, self.left_s, self._used_s, self._past_s)

    def sleep_on(self, stand: Standstill) -> None:
        """Be hibernated, as an earlier process left it; the bound of its pauses has gone on."""
        self._state = "hibernated"
        ago_s = max(0.0, time.time() - stand.since)
        self._since_s = self._loop.time() - ago_s
        self._ends_s = self._since_s + stand.left_s
        self._used_s, self._past_s = stand.used_s, stand.past_s
        self._arm(self._choice.paused_s - self._used_s - ago_s, self._on_too_long)

    def stop(self) -> None:
        """Stop the clocks of a sandbox that has ended, and hold it no longer."""
        self._end, self.on_turned = _has_ended, _nothing
        self._timer.cancel()
        self._stop_saving()

    def _stop_saving(self) -> None:
        for timer in self._later:
            timer.cancel()
        self._later.clear()

    def _arm(self, delay_s: float, then: Callable[[], None]) -> None:
        self._timer.cancel()
        if self._live.is_alive:
            self._timer = self._loop.call_later(max(_LEAST_PAUSE_S, delay_s), then)

    def _on_too_long(self) -> None:
        self._end(f"it was paused for {self._choice.paused_s:g} s")

    @property
    def _idle_s(self) -> float:
        """Seconds without activity after which it ends or pauses."""
        auto_s = self._choice.auto_pause_s
        return self._limits.idle_s if auto_s is None else min(auto_s, self._limits.idle_s)

    def _is_idle(self) -> bool:
        return time.monotonic() - self._live.active_at >= self._idle_s

    def _next_look_s(self) -> float:
        idle_s = self._idle_s - (time.monotonic() - self._live.active_at)
        return min(idle_s, self._ends_s - self._loop.time())

    def _look(self) -> None:
        if self._loop.time() >= self._ends_s:
            self._end(f"its life of {self._limits.life_s:g} s is over")
            return
        if self._live.running or (self._live.channel.is_asked and self._choice.auto_pause_s):
            self._live.touch()  # a running execution is activity
        elif self._is_idle():
            if self._choice.auto_pause_s is None:
                self._end(f"it was idle for {self._limits.idle_s:g} s")
            else:
                self._tasks.spawn(self._pause_alone())
            return
        self._arm(self._next_look_s(), self._look)

    async def _pause_alone(self) -> None:
        """Pause a sandbox that is idle; end it if that is not possible."""
        try:
            await self._pause(self._is_in_use)
        except CellwallError as error:
            if self._live.is_alive:
                self._end(f"it was idle for {self._idle_s:g} s; {error.message}")
        else:
            if not self.is_paused:
                self._arm(self._next_look_s(), self._look)

    def _is_asked(self, beside: AbstractSet[Recorder] = frozenset()) -> bool:
        return bool(self._live.running - beside) or self._live.channel.is_asked

    def _is_in_use(self) -> bool:
        return self._is_asked() or not self._is_idle()
