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
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from cellwall.engine.attempts.verdicts import Cause
from cellwall.engine.parts.contexts import DEFAULT, MAIN, called
from cellwall.engine.parts.pausing import check_pausing
from cellwall.engine.policy.levels import NO_FLOOR, Floor
from cellwall.model.errors import (
    CapacityError,
    Conflict,
    HostUnsupported,
    SandboxBroken,
    SandboxUnavailable,
)
from cellwall.model.snapshot import CopyChoice, Snapshot
from cellwall.runtimes.copies import CopiesSessions, StoresLineages

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.attempts.recorder import Recorder
    from cellwall.engine.parts.network import Outside
    from cellwall.engine.parts.pausing import Standstill
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.state.copies import Copies, Written
    from cellwall.engine.state.durable import Begun
    from cellwall.engine.state.stored_image import StoredImage
    from cellwall.model.snapshot import Keep
    from cellwall.runtimes.base import Runtime, RuntimeSandbox
    from cellwall.runtimes.copies import CopiesFiles

_MOST_NAMED = 5
"""Most things that a refusal names."""
_PATIENCE_S = 10.0
"""Most seconds that a hibernation waits for the answers to requests that are under way."""
_LOOK_S = 0.005
_REASON = "the sandbox was hibernated without it"


_log = logging.getLogger("cellwall.engine")


def _no_floor() -> Floor:
    return NO_FLOOR


def _nothing() -> None:
    """Do nothing: a library's sandboxes reserve nothing."""


async def _is_known() -> None:
    """Return at once, for the same reason."""


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
        """Its image as it is loaded; None: it has processes, or the image is in files alone."""
        self._stored: StoredImage | None = None
        """Its image on disk, if that outlives the engine."""
        self._ending: RuntimeSandbox | None = None
        """Processes that it had."""
        self.on_down: Callable[[], None] = _nothing
        """Gives back what was reserved for its processes."""
        self.room: Callable[[], Awaitable[None]] = _is_known
        """Waits until it is known whether there is room for them again. Raises CapacityError."""
        self.before_back: Callable[[], None] = _nothing
        """Reserves it again. Raises CapacityError."""
        self.floor: Callable[[], Floor] = _no_floor
        """The operator's demand on its tenant, for a session of an earlier engine."""

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
            left = (*at_work, *written.left)

            def check() -> None:
                live.check_alive()
                _check_unused(live, is_used=_used(sandbox) != before)
                _refuse(sandbox, left, drop=drop)

            self._give_up(sandbox, written, await self._stored_as(sandbox, written, check))
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

                def check() -> None:
                    live.check_alive()
                    _check_unused(live, is_used=live.channel.asked != asked)

                begun = await self._stored_as(sandbox, written, check)
            except BaseException:
                copier.go_on(live.runtime_sandbox)
                raise
            spoken = (f"context {name!r}" for name in sandbox.contexts.spoken())
            left = (*_at_work(sandbox), *spoken)
            self._give_up(sandbox, written, begun)
            sandbox.contexts.begin_anew()
        return left

    async def forget_session(self) -> tuple[str, ...]:
        """Keep the files alone of one that is hibernated; return what is lost by that."""
        sandbox = self._held()
        if self.keeps != "session":
            return ()
        if self._stored is not None:
            await self._stored.forget_session()
        if self._image is not None:
            self._image.image = replace(self._image.image, memory_bytes=0)
        sandbox.contexts.begin_anew()
        return (f"context {DEFAULT!r}",)

    async def _stored_as(
        self, sandbox: AsyncSandbox, written: Written, check: Callable[[], None]
    ) -> Begun | None:
        """Write an image to where it outlives the engine, if there is such a place.

        Raises what `check` raises: something was asked meanwhile. Then nothing is left of it.
        """
        begun = None
        try:
            check()
            begun = await self._begun(sandbox, written)
            check()
        except BaseException:
            if begun is not None:
                begun.give_up()
            written.let_go()
            raise
        return begun

    async def _begun(self, sandbox: AsyncSandbox, written: Written) -> Begun | None:
        durable, copier = self._copies().hibernated, written.copier
        if durable is None or not isinstance(copier, StoresLineages):
            return None
        from cellwall.engine.state.asleep import Asleep  # most engines keep none
        from cellwall.engine.state.durable import Session

        stand, image = sandbox.standstill(), written.image
        over_at = _over_at(sandbox, stand)
        made = Snapshot(
            sandbox.id,
            "",
            sandbox.template,
            sandbox.created_at,
            over_at,
            image.memory_bytes,
            image.files_bytes,
            written.left,
        )
        session = Session(copier, image, written.files)
        try:
            asleep = Asleep.of(sandbox, stand, durable.home)
            return await durable.begin(
                made, session, written.heritage, written.runtime.name, asleep
            )
        except (CapacityError, HostUnsupported, OSError) as error:
            _log.warning("sandbox %s: hibernated, it ends with its engine: %s", sandbox.id, error)
            return None

    def _give_up(self, sandbox: AsyncSandbox, written: Written, begun: Begun | None) -> None:
        """End its processes: the image is all there is of it from now on."""
        self._image, self._stored = written, self._put(sandbox, begun)
        for recorder in list(sandbox.live.running):
            recorder.settle(Cause.CANCEL, _REASON)
        self._lay_down(sandbox, written.runtime)
        sandbox.contexts.end_others()
        self._unload()
        self.on_down()

    def _put(self, sandbox: AsyncSandbox, begun: Begun | None) -> StoredImage | None:
        """Have what was written to the disk there, if anything was."""
        if begun is None:
            return None
        from cellwall.engine.state.stored_image import StoredImage

        try:
            return StoredImage(begun.durable, begun.put())
        except CapacityError as error:
            _log.warning("sandbox %s: hibernated, it ends with its engine: %s", sandbox.id, error)
            return None

    def _unload(self) -> None:
        """Have a loaded image in its files alone, if it must not be on a disk as it is."""
        image, stored = self._image, self._stored
        if image is None or stored is None or not stored.is_sealed:
            return
        image.budget = stored.takes_on(image.budget)
        self._image = None
        image.let_go()

    def _lay_down(self, sandbox: AsyncSandbox, runtime: Runtime) -> None:
        left = sandbox.live.put_to_sleep()
        sandbox.on_laid_down()
        self._ending = left.runtime_sandbox
        left.channel.close(_REASON)
        self._copies().discard(left, runtime)
        self._outside.put_down(sandbox.live)

    async def settle(self) -> None:
        """Wait until its image is on the disk for good, and its processes are gone."""
        if self._stored is not None:
            await self._stored.settle()
        ending, self._ending = self._ending, None
        if ending is not None:
            await ending.wait_ended()

    async def bring_back(self) -> None:
        """Have it go on in fresh processes. If this raises, it is as it was."""
        sandbox, copies = self._held(), self._copies()
        written: Written | None = None
        await self.room()
        sandbox.live.check_alive()  # it may have been ended meanwhile, and its image with it
        self.before_back()
        try:
            with copies.counts.counting("wake"):
                written = await self._loaded(sandbox)
                fresh = await copies.become(written, reseed=False)
                await self._went_on(sandbox, fresh, written)
        except BaseException:
            self._unload()
            self.on_down()
            raise
        finally:
            if written is not None:
                written.let_go()
        self._throw_away()

    async def _loaded(self, sandbox: AsyncSandbox) -> Written:
        """Return its image for one user more, loaded if it is in files alone.

        Raises Conflict, UsageError, HostUnsupported with what it cannot go on with here.
        """
        if self._image is None:
            stored = self._stored
            assert stored is not None  # noqa: S101  `pausing` asks only for one that is hibernated
            try:
                written = await self._copies().load(stored.header, self.floor())
            except Conflict as error:
                raise _cannot_wake(sandbox, error, self.keeps) from error
            if self._sandbox is None:
                written.let_go()
                sandbox.live.check_alive()
            if stored.budget is not None:
                written.budget, stored.budget = stored.budget, None
            if sandbox.live.network is not None:  # as far as it is allowed now
                sandbox.live.network.policy = written.heritage.policy
            self._image = written
        self._image.users += 1
        return self._image

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
            sandbox.go_on_in_fresh()
            if self._stored is not None:
                await self._stored.retire()
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
        self._stored = None

    # -- beyond this engine ----------------------------------------------------------------

    @property
    def is_stored(self) -> bool:
        """Whether it is hibernated, and its image outlives the engine."""
        sandbox = self._sandbox
        return self._stored is not None and sandbox is not None and sandbox.live.asleep is not None

    def sleep_on(self, stored: StoredImage) -> None:
        """Be hibernated, as an earlier engine left it."""
        self._stored = stored

    def leave(self) -> None:
        """Leave its image to a later engine: the sandbox ends in this one alone."""
        self._stored = None

    async def note_times(self) -> None:
        """Keep its times, if they outlive the engine. Raises CapacityError, Conflict."""
        sandbox = self._sandbox
        if self._stored is not None and sandbox is not None:
            stand = sandbox.standstill()
            await self._stored.note(stand, _over_at(sandbox, stand))

    @property
    def image_bytes(self) -> int:
        """Bytes of disk that it takes while it is hibernated; 0: it is not."""
        if self._image is not None:
            return self._image.image.memory_bytes + self._image.image.files_bytes
        return 0 if self._stored is None else self._stored.image_bytes

    @property
    def keeps(self) -> Keep | None:
        """What it keeps while it is hibernated; None: it is not."""
        if self._image is not None:
            return "session" if self._image.image.has_session else "files"
        if self._stored is not None:
            return "session" if self._stored.header.has_session else "files"
        return None

    def end(self) -> None:
        """Throw the image away, and hold the sandbox no longer: it has ended."""
        self._sandbox = None
        stored, self._stored = self._stored, None
        if stored is not None:
            stored.remove()
        self._throw_away()

    def _throw_away(self) -> None:
        """Give the image up, if there is one."""
        image, self._image = self._image, None
        if image is not None:
            image.let_go()


def _over_at(sandbox: AsyncSandbox, stand: Standstill) -> float:
    """Return when it has been paused for as long as it may be, in seconds since the epoch."""
    return stand.since + sandbox.pauses.paused_s - stand.used_s


def _cannot_wake(sandbox: AsyncSandbox, error: Conflict, keeps: Keep | None) -> Conflict:
    """Return why a session of an earlier engine does not go on here, and what does."""
    remedy = error.remedy or ""
    if keeps == "session":
        remedy += "; its files alone go on after hibernate(keep='files')"
    return Conflict(f"wake: {sandbox.id}: {error.message}", remedy=remedy)


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
