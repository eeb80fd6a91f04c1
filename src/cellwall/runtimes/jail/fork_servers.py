"""The fork-servers of the jail runtime: one for each template in use, replaced before it wears out.

A runtime that `answers_first` starts a quick one before it: it imports, and does nothing else, so
the first program is answered while no full one runs. The walls around its sandboxes are the same.

Starting one is in `runtimes.jail.fork_server`, and forking sandboxes from it in `runtime`. The
invariant: a fork-server is closed only when no sandbox made from it lives, because its end is also
the end of those sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cellwall.jail.inspect import posture
from cellwall.jail.plan import plan
from cellwall.linux import seccomp
from cellwall.linux import uid_ranges as uids
from cellwall.model.errors import CellwallError, HostUnsupported, NotFound, SandboxBroken
from cellwall.model.template import BuiltTemplate
from cellwall.runtimes.jail import fork_server
from cellwall.runtimes.jail.starting.bundle import bundle_in
from cellwall.runtimes.jail.starting.head_start import Begun, HeadStart
from cellwall.runtimes.jail.starting.launch import QUICK_WORKERS, Launched, Settings
from cellwall.runtimes.jail.starting.settings import Ground, Kind, settings_of, workers_on
from cellwall.runtimes.jail.stored.base import Base
from cellwall.runtimes.jail.worker import Worker

_QUICK_STARTS = 2
"""Most starts that callers wait for before a full fork-server is started in the background. Two: a
program that is compiled first has a sandbox for each, and a single run must not pay for more."""
_MAX_FORKS = 10_000
_MAX_AGE_S = 1800.0
"""Most seconds for which one fork-server is used. All its forks share its address layout and hash
seed; this limits for how long."""
_SESSIONS_AFTER_S = 0.25
"""Seconds from a start until the fork-server imports what sessions need, unless a session is asked
for sooner. This is longer than a single program takes, so that the program has the processor for
itself."""


def volumes_need_root() -> HostUnsupported:
    """Return the refusal of a volume to an ordinary user."""
    return HostUnsupported(
        "volumes",
        "volumes: an ordinary user cannot mount one",
        remedy="run cellwall as root",
    )


@dataclass(slots=True)
class Entry:
    """A fork-server, the ids of its sandboxes, and the number of them that live."""

    server: fork_server.ForkServer
    uids: uids.UidRange
    namespaces: Mapping[str, str]
    """Namespaces of the fork-server itself: no sandbox may be in one of them."""
    template: str = ""
    """Digest of its template."""
    live: int = 0
    standing: int = 0
    """Number of those that only stand still, for its base."""
    starts: int = 0
    """Number of starts that callers waited for, of a quick one."""
    images: int = 0
    """Number of images of sessions, and of copying under way, that need it."""
    base: asyncio.Task[Base] | None = None
    """Task that makes what images of sessions are compared with."""
    completing: asyncio.Task[None] | None = None
    """Task that makes the fork-server ready for sessions."""

    @property
    def lineage(self) -> str:
        """Name of the fork-server, different from any other's on this machine."""
        return f"{self.server.pid}-{self.server.started_at:.9f}"

    @property
    def has_init(self) -> bool:
        """Whether sandboxes with an init of ours can be forked from it."""
        return self.server.settings.needs_init

    @property
    def is_used(self) -> bool:
        """Whether a sandbox or an image needs it; the one that stands still does not."""
        return self.live > self.standing or self.images > 0

    @property
    def is_worn(self) -> bool:
        """Whether new sandboxes should come from another fork-server."""
        age_s = asyncio.get_running_loop().time() - self.server.started_at
        is_spent = self.server.forks >= _MAX_FORKS or self.uids.is_full
        return not self.server.is_usable or is_spent or age_s > _MAX_AGE_S

    async def aclose(self) -> None:
        """End the fork-server, and with it all processes that it forked."""
        if self.completing is not None:
            self.completing.cancel()
            await asyncio.gather(self.completing, return_exceptions=True)
        if self.base is not None:
            self.base.cancel()
            with contextlib.suppress(asyncio.CancelledError, CellwallError, OSError):
                base = await self.base
                os.close(base.fd)
                if base.standing is not None:
                    await base.standing.aclose()
        await self.server.aclose()
        self.uids.release()


class Placing(Protocol):
    """Places waiting workers in the cgroups of the sandboxes that they will clone next."""

    is_fast: bool
    """Whether `jail.fast` is in use; see its `switch`."""
    is_rehearsed: bool
    """See `launch.Settings`."""

    @property
    def lifeline(self) -> int:
        """See `launch.Settings`."""

    async def place(self, entry: Entry, workers: Sequence[Worker]) -> None:
        """Put new workers of a fork-server into cgroups."""

    async def clear(self, entry: Entry) -> None:
        """Remove the cgroups that the workers of an ended fork-server were in."""


def _heed(start: asyncio.Task[Entry]) -> None:
    """Take the error of a start that no caller waited for; the next start meets it, too."""
    if not start.cancelled():
        start.exception()


class ForkServers:
    """All fork-servers of one runtime."""

    def __init__(
        self,
        state_dir: Path,
        ground: Ground,
        placing: Placing,
        *,
        answers_first: bool = False,
        head_start: HeadStart | None = None,
    ) -> None:
        """`head_start`: what may be taken over as the first quick one."""
        self.are_alike = False
        """Whether those of one template have the same layout of memory, also in another engine."""
        self._placing = placing
        self._state_dir = state_dir
        self._ground = ground
        self._ids = ground.ids
        self._head_start = head_start
        self._programs: dict[tuple[str, ...], bytes] = {}
        """Other filters, by the names of the policy texts that allow more."""
        self._answers_first = answers_first
        self._quick: dict[str, Entry] = {}
        """Quick fork-servers, by template; each until a full one of its template is there, or
        another quick one that has an init."""
        self._quick_locks: dict[str, asyncio.Lock] = {}
        self._full_starts: dict[str, asyncio.Task[Entry]] = {}
        """Starts of full fork-servers that no caller waits for."""
        self._current: dict[str, Entry] = {}
        self._retired: list[Entry] = []
        self._locks: dict[str, asyncio.Lock] = {}

    def whole_program(self, shape: plan.Shape) -> bytes:
        """Return the seccomp filter of a sandbox, the usual one or another."""
        return self.program(shape) or self._ground.program

    def program(self, shape: plan.Shape) -> bytes:
        """Return the seccomp filter of a sandbox that may do more than the usual one; else none."""
        names = plan.policies(shape)
        if names and names not in self._programs:
            more = [seccomp.load_policy(name) for name in names]
            machine = os.uname().machine
            made = seccomp.compile_policy(
                seccomp.load_policy(), machine, self._ground.refusals, more
            )
            self._programs[names] = made
        return self._programs.get(names, b"")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The fork-servers in use, and those that wait for the end of their last sandbox."""
        return (*self._current.values(), *self._quick.values(), *self._retired)

    @property
    def lineages(self) -> set[str]:
        """The lineages of these."""
        return {entry.lineage for entry in self.entries}

    async def for_program(
        self, template: BuiltTemplate, *, needs_init: bool, is_awaited: bool
    ) -> Entry:
        """Return a fork-server for a program: a quick one if no full one has run yet."""
        digest = template.digest
        if not self._answers_first or digest in self._current:
            return await self.get(template)
        async with self._quick_locks.setdefault(digest, asyncio.Lock()):
            entry = self._quick.get(digest)
            if entry is not None and needs_init and not entry.has_init:
                entry = None
            if entry is None and digest not in self._full_starts:
                entry = await self._start_quick(template, needs_init=needs_init)
        full = self._full_starts.get(digest)
        if entry is None or entry.is_worn or (full is not None and full.done()):
            return await self.get(template)  # which raises what the start of a full one meets
        entry.starts += is_awaited
        if full is None and (not is_awaited or entry.starts > _QUICK_STARTS):
            full = asyncio.get_running_loop().create_task(self.get(template))
            full.add_done_callback(_heed)
            self._full_starts[digest] = full
        return entry

    async def _start_quick(self, template: BuiltTemplate, *, needs_init: bool) -> Entry:
        ahead = await self._begun_ahead(template, needs_init=needs_init)
        if ahead is None:
            entry = await self._start(template, is_quick=True, needs_init=needs_init)
        else:
            entry = await self._started(ahead.settings, ahead.held, template, ahead.launched)
        await self._placed(entry)
        if template.digest in self._current:  # a session was asked for meanwhile
            self._retired.append(entry)
            return entry
        if (before := self._quick.get(template.digest)) is not None:
            entry.starts = before.starts
            self._retired.append(before)
        self._quick[template.digest] = entry
        return entry

    async def _begun_ahead(self, template: BuiltTemplate, *, needs_init: bool) -> Begun | None:
        """Take what was started ahead, if it is what would be started now; else end it."""
        ahead = None if self._head_start is None else self._head_start.take(template.digest)
        if ahead is None:
            return None
        settings = ahead.settings
        # One with an init will do for a program that needs none.
        kind = self._kind(
            QUICK_WORKERS, is_quick=True, needs_init=needs_init or settings.needs_init
        )
        wanted = settings_of(self._ground, template, ahead.held, settings.guest_path, kind)
        if wanted == settings:
            return ahead
        await asyncio.to_thread(ahead.end)
        return None

    async def for_images(self, template: BuiltTemplate) -> Entry:
        """Return a fork-server for sandboxes on images; their init is of `template`."""
        key = f"{template.digest} images"
        async with self._locks.setdefault(key, asyncio.Lock()):
            entry = self._current.get(key)
            if entry is not None and not entry.is_worn:
                return entry
            is_quick = self._answers_first and entry is None
            fresh = await self._start(template, is_quick=is_quick, for_images=True)
            await self._placed(fresh)
            if entry is not None:
                self._retired.append(entry)
            self._current[key] = fresh
        await self.close_unused()
        return fresh

    async def _placed(self, fresh: Entry) -> None:
        try:
            await self._placing.place(fresh, fresh.server.workers)
        except BaseException:
            await self._end(fresh)
            raise

    async def get(self, template: BuiltTemplate) -> Entry:
        """Return the template's fork-server; start it if necessary."""
        lock = self._locks.setdefault(template.digest, asyncio.Lock())
        async with lock:
            entry = self._current.get(template.digest)
            if entry is not None and not entry.is_worn:
                return entry
            fresh = await self._start(template)
            await self._placed(fresh)
            if entry is not None:
                self._retired.append(entry)
            if (quick := self._quick.pop(template.digest, None)) is not None:
                self._retired.append(quick)
            self._current[template.digest] = fresh
            fresh.completing = asyncio.get_running_loop().create_task(self._complete(fresh))
        await self.close_unused()
        return fresh

    def of_lineage(self, lineage: str) -> Entry:
        """Return the fork-server of that lineage. Raises NotFound if it has ended."""
        for entry in self.entries:
            if entry.lineage == lineage and entry.server.is_usable:
                return entry
        raise NotFound(
            "snapshot: the fork-server that its session came from has ended",
            remedy="a snapshot lives as long as the engine that made it; make another one",
        )

    async def _complete(self, entry: Entry) -> None:
        """Make a fork-server ready for sessions; a request for one raises the failure."""
        server = entry.server
        with contextlib.suppress(CellwallError):
            workers = await server.complete(_SESSIONS_AFTER_S)
            try:
                await self._placing.place(entry, workers)
            except (CellwallError, OSError) as error:
                server.lose(f"a worker could not be placed: {error}")
                server.refuse_sessions(SandboxBroken(f"fork-server: {error}"))
                return
            for worker in workers:
                server.give_back(worker)

    async def _start(
        self,
        template: BuiltTemplate,
        *,
        is_quick: bool = False,
        needs_init: bool = True,
        for_images: bool = False,
    ) -> Entry:
        bundle = bundle_in(self._state_dir)
        interpreter = None
        if for_images:
            from cellwall.runtimes.shared import own_interpreter  # most engines use no image

            interpreter = await asyncio.to_thread(
                own_interpreter.build, self._state_dir, template.base_python
            )
        held = self._ids.hold_for_images() if for_images else self._ids.hold()
        workers = QUICK_WORKERS if is_quick else workers_on(os.cpu_count() or 1)
        if for_images:
            workers = {"program": workers.get("session", 1), "session": 0}
        kind = self._kind(workers, is_quick=is_quick, needs_init=needs_init)._replace(
            is_alike=self.are_alike and not (is_quick or for_images),
            for_images=for_images,
            interpreter=str(interpreter or ""),
        )
        settings = settings_of(self._ground, template, held, bundle, kind)
        return await self._started(settings, held, template)

    def _kind(self, workers: Mapping[str, int], *, is_quick: bool, needs_init: bool) -> Kind:
        return Kind(
            workers,
            lifeline=self._placing.lifeline,
            is_fast=self._placing.is_fast,
            is_rehearsed=self._placing.is_rehearsed,
            is_quick=is_quick,
            needs_init=needs_init,
        )

    async def _started(
        self,
        settings: Settings,
        held: uids.UidRange,
        template: BuiltTemplate,
        launched: Launched | None = None,
    ) -> Entry:
        """Wait until a fork-server has workers; it is started first if it was not `launched`."""
        server = fork_server.ForkServer(settings, self._ground.facts, launched)
        try:
            await server.start()
            spaces = posture.namespaces_of(server.pid)
            return Entry(server, held, spaces, template.digest)
        except BaseException:
            await server.aclose()
            held.release()
            raise

    async def wait_whole(self) -> None:
        """Wait until each fork-server is ready for sessions, or has failed to become so."""
        if self._full_starts:
            await asyncio.wait(self._full_starts.values())
        for entry in self.entries:
            entry.server.want_sessions()
            if entry.completing is not None:
                await asyncio.wait([entry.completing])

    def leave(self, entries: Collection[Entry]) -> None:
        """Let fork-servers go on without this process, with their kept sandboxes."""
        for entry in entries:
            entry.server.leave()
            entry.uids.release()
        self._current = {key: e for key, e in self._current.items() if e not in entries}
        self._retired = [each for each in self._retired if each not in entries]

    async def close_unused(self) -> None:
        """End the retired fork-servers whose last sandbox has ended."""
        for entry in [each for each in self._retired if not each.is_used]:
            self._retired.remove(entry)
            await self._end(entry)

    async def aclose(self) -> None:
        """End all fork-servers."""
        for start in self._full_starts.values():
            start.cancel()
        await asyncio.gather(*self._full_starts.values(), return_exceptions=True)
        entries = self.entries
        self._current.clear()
        self._quick.clear()
        self._retired.clear()
        for entry in entries:
            await self._end(entry)

    async def _end(self, entry: Entry) -> None:
        await entry.aclose()
        await self._placing.clear(entry)

    def abandon(self) -> None:
        """Close the parent's descriptors in a forked child, and end nothing."""
        for entry in self.entries:
            entry.server.abandon()
            entry.uids.release()
        self._current.clear()
        self._quick.clear()
        self._retired.clear()
