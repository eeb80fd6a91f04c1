"""Hibernation of one sandbox: its session is written down, and its processes end.

Called by `parts.pausing`, which knows when; what writes and what becomes a session is `copies`. The
object that its owner holds goes on, with its id, its name and its clocks, and with the processes of
a fresh sandbox once it is wanted again. The invariant: a sandbox has its processes or its image,
never neither: processes end only after the image is whole and nothing was asked of it meanwhile,
and the image goes only when a fresh sandbox has become the session, or at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from cellwall.engine.attempts.verdicts import Cause
from cellwall.engine.parts.contexts import DEFAULT, MAIN, called
from cellwall.engine.parts.pausing import check_pausing
from cellwall.model.errors import Conflict, HostUnsupported, SandboxBroken, SandboxUnavailable
from cellwall.model.snapshot import CopyChoice
from cellwall.runtimes.copies import CopiesSessions

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.engine.parts.network import Outside
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.state.copies import Copies, Written
    from cellwall.model.snapshot import Keep
    from cellwall.runtimes.base import Runtime, RuntimeSandbox
    from cellwall.runtimes.copies import CopiesFiles

_MOST_NAMED = 5
"""Most things that a refusal names."""
_PATIENCE_S = 10.0
"""Most seconds that a hibernation waits for the answers to requests that are under way."""
_LOOK_S = 0.005
_REASON = "the sandbox was hibernated without it"


def _nothing() -> None:
    """Do nothing: a library's sandboxes reserve nothing."""


class Hibernation:
    """What hibernates one sandbox."""

    def __init__(
        self, sandbox: AsyncSandbox, copies: Callable[[], Copies], outside: Outside
    ) -> None:
        """Nothing is written yet."""
        self._sandbox: AsyncSandbox | None = sandbox
        """None: it has ended."""
        self._copies = copies
        self._outside = outside
        self._image: Written | None = None
        self._ending: RuntimeSandbox | None = None
        """Processes that it had."""
        self.on_down: Callable[[], None] = _nothing
        """Gives back what was reserved for its processes."""
        self.before_back: Callable[[], None] = _nothing
        """Reserves it again. Raises CapacityError."""

    def check(self, keep: Keep) -> None:
        """Raise HostUnsupported or Conflict if it cannot be hibernated whatever runs in it."""
        sandbox = self._held()
        check = check_files_alone if keep == "files" else check_hibernation
        check(sandbox.live, self._copies().runtime_of(sandbox))

    @contextlib.asynccontextmanager
    async def alone(self, keep: Keep, *, is_patient: bool) -> AsyncIterator[None]:
        """Hold the turn of its session meanwhile; wait for it if `is_patient`, or raise Conflict.

        A hibernation that keeps the files alone takes no turn: the cell under way ends with it.
        Raises HostUnsupported and Conflict if it cannot be hibernated whatever runs in it.
        """
        sandbox = self._held()
        self.check(keep)
        if keep == "files":
            yield
            return
        contexts = sandbox.contexts
        if not is_patient and contexts.is_busy(DEFAULT):
            raise Conflict(
                f"hibernate: {sandbox.id}: a cell in it stands still half way",
                remedy="resume it, and let the cell end or cancel it",
            )
        async with contexts.turn(MAIN, None) as (name, _):
            if is_patient:
                await contexts.ensure(name)
            elif name not in contexts.names():
                raise Conflict(
                    f"hibernate: {sandbox.id}: its session in Python has ended",
                    remedy="run a cell first, which begins another",
                )
            yield

    def _held(self) -> AsyncSandbox:
        """Return the sandbox, which what is under way holds beyond its end."""
        assert self._sandbox is not None  # noqa: S101  `pausing` asks only for one that is alive
        return self._sandbox

    async def put_down(self, *, drop: bool) -> tuple[str, ...]:
        """Write it down and give its processes up; return what is left behind.

        Nothing is awaited after that. If this raises, it is as it was.
        """
        sandbox = self._held()
        live, before = sandbox.live, _used(sandbox)
        at_work = _at_work(sandbox)
        _refuse(sandbox, at_work, drop=drop)
        choice = CopyChoice(None, "drop" if drop else "refuse")
        copies, heritage = self._copies(), sandbox.heritage()
        with copies.counts.counting("hibernate"):
            written = await copies.write_idle(sandbox, heritage, choice)
            try:
                live.check_alive()
                _check_unused(live, is_used=_used(sandbox) != before)
                left = (*at_work, *written.left)
                _refuse(sandbox, left, drop=drop)
            except BaseException:
                written.let_go()
                raise
            self._give_up(sandbox, written)
        return left

    async def put_down_files(self) -> tuple[str, ...]:
        """Write its files down and give its processes up; return what ends with these.

        Every program stands still meanwhile. Nothing is awaited after that. If this raises, it is
        as it was.
        """
        sandbox = self._held()
        live, copies = sandbox.live, self._copies()
        copier = check_files_alone(live, copies.runtime_of(sandbox))
        await _answered(live)
        with copies.counts.counting("hibernate"):
            with live.speaking():
                await copier.stand_still(live.runtime_sandbox)
            try:
                asked = live.channel.asked
                written = await copies.write_files(sandbox, sandbox.heritage())
                try:
                    live.check_alive()
                    _check_unused(live, is_used=live.channel.asked != asked)
                except BaseException:
                    written.let_go()
                    raise
            except BaseException:
                copier.go_on(live.runtime_sandbox)
                raise
            spoken = (f"context {name!r}" for name in sandbox.contexts.spoken())
            left = (*_at_work(sandbox), *spoken)
            self._give_up(sandbox, written)
            sandbox.contexts.begin_anew()
        return left

    def forget_session(self) -> tuple[str, ...]:
        """Keep the files alone of one that is hibernated; return what is lost by that."""
        written = self._image
        if written is None or not written.image.has_session:
            return ()
        written.image = replace(written.image, memory_bytes=0)
        self._held().contexts.begin_anew()
        return (f"context {DEFAULT!r}",)

    def _give_up(self, sandbox: AsyncSandbox, written: Written) -> None:
        """End its processes: the image is all there is of it from now on."""
        for recorder in list(sandbox.live.running):
            recorder.settle(Cause.CANCEL, _REASON)
        self._image = written
        self._lay_down(sandbox, written.runtime)
        sandbox.contexts.end_others()
        self.on_down()

    def _lay_down(self, sandbox: AsyncSandbox, runtime: Runtime) -> None:
        left = sandbox.live.put_to_sleep()
        sandbox.on_laid_down()
        self._ending = left.runtime_sandbox
        left.channel.close(_REASON)
        self._copies().discard(left, runtime)
        self._outside.put_down(sandbox.live)

    async def settle(self) -> None:
        """Wait until its processes are gone."""
        ending, self._ending = self._ending, None
        if ending is not None:
            await ending.wait_ended()

    async def bring_back(self) -> None:
        """Have it go on in fresh processes. If this raises, it is as it was."""
        sandbox, written, copies = self._held(), self._image, self._copies()
        assert written is not None  # noqa: S101  `pausing` asks only for one that is hibernated
        self.before_back()
        written.users += 1
        try:
            with copies.counts.counting("wake"):
                fresh = await copies.become(written, reseed=False)
                await self._went_on(sandbox, fresh, written)
        except BaseException:
            self.on_down()
            raise
        finally:
            written.let_go()
        self._throw_away()

    async def _went_on(
        self, sandbox: AsyncSandbox, fresh: ClaimedSandbox, written: Written
    ) -> None:
        """Have the sandbox go on as a fresh one that has become its session."""
        live = sandbox.live
        if live.ended_because:  # closed meanwhile
            self._copies().discard(fresh, written.runtime)
            live.check_alive()
        live.wake_as(fresh)
        try:
            await self._outside.bring_back(live)
            live.check_alive()
        except BaseException as error:
            if live.ended_because:
                raise
            lost = live.channel.lost
            self._lay_down(sandbox, written.runtime)
            if isinstance(error, SandboxUnavailable):
                raise SandboxBroken(
                    f"wake: {sandbox.id}: its new processes ended: {lost}",
                    remedy="make the request again",
                ) from error
            raise
        sandbox.go_on_in_fresh()

    @property
    def image_bytes(self) -> int:
        """Bytes of disk that it takes while it is hibernated; 0: it is not."""
        written = self._image
        return 0 if written is None else written.image.memory_bytes + written.image.files_bytes

    @property
    def keeps(self) -> Keep | None:
        """What it keeps while it is hibernated; None: it is not."""
        if self._image is None:
            return None
        return "session" if self._image.image.has_session else "files"

    def end(self) -> None:
        """Throw the image away, and hold the sandbox no longer: it has ended."""
        self._sandbox = None
        self._throw_away()

    def _throw_away(self) -> None:
        """Give the image up, if there is one."""
        image, self._image = self._image, None
        if image is not None:
            image.let_go()


async def _answered(live: ClaimedSandbox) -> None:
    """Wait until no request to its guest is half way: what a file operation began, it ends."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while live.channel.is_asked:  # noqa: ASYNC110 - the channel has no event for it
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise Conflict(
            f"hibernate: {live.spec.sandbox_id}: a request to it is under way",
            remedy="try again",
            is_passing=True,
        ) from None
    live.check_alive()


def _check_unused(live: ClaimedSandbox, *, is_used: bool) -> None:
    if is_used:
        raise Conflict(
            f"hibernate: {live.spec.sandbox_id}: it was used meanwhile",
            remedy="try again",
            is_passing=True,
        )


def _used(sandbox: AsyncSandbox) -> tuple[float, int]:
    """Return what differs once anything was asked of it."""
    return sandbox.live.active_at, sandbox.live.channel.asked


def _at_work(sandbox: AsyncSandbox) -> tuple[str, ...]:
    """Return what runs in it for its owner, or is open: an image has none of it."""
    live, background = sandbox.live, sandbox.commands.background()
    named = [
        f"command {' '.join(command.argv)[:80]!r}" if command.argv else "a command"
        for command in background
    ]
    known = {command.attempt.recorder for command in background}
    named += [_called(recorder) for recorder in live.running - known]
    if live.channel.listening > len(live.running):
        named.append("a connection to it, or a watch of its files")
    return tuple(named)


def _refuse(sandbox: AsyncSandbox, left: tuple[str, ...], *, drop: bool) -> None:
    """Raise Conflict if something would be left behind that must not be."""
    if left and not drop:
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        raise Conflict(
            f"hibernate: {sandbox.id}: it would lose {', '.join(left[:_MOST_NAMED])}{more}",
            remedy="end that first, or hibernate it with drop=True",
        )


def _called(recorder: Recorder) -> str:
    name = recorder.context
    return "a command" if name is None else f"a cell in {called(name)!r}"


def check_wishes(live: ClaimedSandbox, runtime: Runtime, *, hibernates: bool) -> None:
    """Raise HostUnsupported or Conflict if it can have no pauses, or no hibernation."""
    check_pausing(live)
    if hibernates:
        check_hibernation(live, runtime)


def check_hibernation(live: ClaimedSandbox, runtime: Runtime) -> None:
    """Raise HostUnsupported or Conflict if it cannot be hibernated whatever runs in it."""
    if not isinstance(runtime, CopiesSessions) or runtime.copier.carries != "session":
        raise HostUnsupported(
            "hibernate",
            f"hibernate: the runtime {runtime.name!r} cannot write a session down and end it",
            remedy="use runtime 'jail'; a pause keeps what runs in memory",
        )
    from cellwall.engine.state.copies import copier_of  # most engines copy none

    copier_of(live, runtime, None, "hibernate")


def check_files_alone(live: ClaimedSandbox, runtime: Runtime) -> CopiesFiles:
    """Return what writes its files down. Raises HostUnsupported or Conflict if nothing can."""
    from cellwall.engine.state.copies import files_copier_of  # most engines copy none

    return files_copier_of(live, runtime)
