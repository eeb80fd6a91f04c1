"""Forks of a live sandbox, and snapshots of it, for one engine.

`AsyncSandbox.fork` and `snapshot` call it; the runtime writes a session down and makes a fresh
sandbox that session (`CopiesSessions`). The invariant: a copy is a sandbox of its own from the
start, claimed and confined as any other, with the limits, the network policy and the owner of its
source; and what an image needs is kept until the image is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellwall.engine.parts.contexts import DEFAULT, MAIN
from cellwall.engine.state.copy_counts import CopyCounts, CopyStatistics, counted
from cellwall.engine.state.disk_budget import DiskBudget, SessionBudget
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    HostUnsupported,
    NotFound,
    SandboxBroken,
)
from cellwall.model.ids import new_id
from cellwall.model.snapshot import (
    Fork,
    Snapshot,
    Threads,
    check_count,
    check_expiry,
    check_name,
    check_threads,
)
from cellwall.runtimes.base import CopiesSessions
from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.parts.pausing import PauseChoice
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.model.limits import Limits
    from cellwall.model.network import NetworkPolicy
    from cellwall.runtimes.base import (
        Runtime,
        SandboxSpec,
        SessionCopier,
        SessionFiles,
        SessionImage,
    )
    from cellwall.surface.tools.tools import Offer

_MOST_AT_ONCE = 4
"""Most copies of one fork that are made at the same time."""
_SLACK_BYTES = 64 << 20
"""Bytes of a session that is written down beside its memory and files: tables and names."""


class Heritage(NamedTuple):
    """What a copy gets of its source besides memory and files."""

    spec: SandboxSpec
    policy: NetworkPolicy
    trust: str | None
    tools: Offer | None
    tenant: str
    pauses: PauseChoice


@dataclass(slots=True)
class _Written:
    """A session that was written down, and what it needs as long as it is kept."""

    runtime: Runtime
    copier: SessionCopier
    """The runtime's part that wrote it."""
    image: SessionImage
    files: SessionFiles
    heritage: Heritage
    left: tuple[str, ...]
    budget: SessionBudget
    users: int = 1
    """Number of snapshots, of forks under way and of living copies that need it."""

    def let_go(self) -> None:
        """Give it up for one user; the last one removes it."""
        self.users -= 1
        if not self.users:
            self.files.close()
            self.budget.give_back()
            self.copier.let_lineage_go(self.image.lineage)


class Host(NamedTuple):
    """The engine as copies need it."""

    folder: Path
    """Directory on whose file system sessions are written down."""
    room: DiskBudget
    """Room for all sessions that are written down, kept or under way."""
    runtime_of: Callable[[AsyncSandbox], Runtime]
    claim: Callable[[Runtime, SandboxSpec], Awaitable[ClaimedSandbox]]
    adopt: Callable[[ClaimedSandbox, Runtime, Heritage], Awaitable[AsyncSandbox]]
    """Makes a claimed sandbox one of the engine's, with its way out."""
    discard: Callable[[ClaimedSandbox, Runtime], None]


@dataclass(slots=True)
class _Kept:
    snapshot: Snapshot
    written: _Written
    expiry: asyncio.TimerHandle = field(repr=False)


class Copies:
    """The forks and snapshots of one engine."""

    def __init__(self, host: Host) -> None:
        """Nothing is kept yet."""
        self._host = host
        self.counts = CopyCounts()
        self._kept: dict[str, _Kept] = {}

    def statistics(self) -> CopyStatistics:
        """Return what was made and refused, and what is kept."""
        kept = [each.snapshot for each in self._kept.values()]
        size = sum(each.memory_bytes + each.files_bytes for each in kept)
        return self.counts.statistics(len(kept), size)

    # -- forks -----------------------------------------------------------------------------

    @counted
    async def fork(
        self,
        source: AsyncSandbox,
        heritage: Heritage,
        count: int,
        *,
        reseed: bool,
        threads: Threads = "refuse",
    ) -> list[Fork[AsyncSandbox]]:
        """Return `count` copies of a session, each with an error in its place if it failed.

        Raises the error of the source: Conflict, HostUnsupported, CapacityError.
        """
        check_count(count)
        written = await self._write_down(source, heritage, check_threads(threads))
        places = asyncio.Semaphore(_MOST_AT_ONCE)
        forks: list[Fork[AsyncSandbox]] = []

        async def one() -> None:
            async with places:
                forks.append(await self._tried(written, reseed=reseed))

        is_whole = False
        try:
            async with asyncio.TaskGroup() as group:  # no copy is being made once it has ended
                for _ in range(count):
                    group.create_task(one())
            is_whole = True
            return forks
        finally:
            written.let_go()
            if not is_whole:  # the caller never gets them
                for each in forks:
                    if each.made is not None:
                        await each.made.close()

    async def _tried(self, written: _Written, *, reseed: bool) -> Fork[AsyncSandbox]:
        try:
            made = await self._revived(written, reseed=reseed)
        except CellwallError as error:
            return Fork(None, error, written.left)
        except OSError as error:
            return Fork(None, _short("fork", error), written.left)
        return Fork(made, None, written.left)

    # -- snapshots -------------------------------------------------------------------------

    @counted
    async def snapshot(
        self,
        source: AsyncSandbox,
        heritage: Heritage,
        name: str | None,
        expires_s: float,
        threads: Threads = "refuse",
    ) -> Snapshot:
        """Write a session down and keep it. Raises as `fork`."""
        snapshot_id = new_id()
        name = snapshot_id if name is None else check_name(name)
        check_expiry(expires_s)
        written = await self._write_down(source, heritage, check_threads(threads))
        now = time.time()
        made = Snapshot(
            snapshot_id,
            name,
            source.template,
            now,
            now + expires_s,
            written.image.memory_bytes,
            written.image.files_bytes,
            written.left,
        )
        loop = asyncio.get_running_loop()
        expiry = loop.call_later(expires_s, self._drop, snapshot_id)
        self._kept[snapshot_id] = _Kept(made, written, expiry)
        return made

    @counted
    async def restore(self, wanted: str, tenant: str, *, reseed: bool = True) -> AsyncSandbox:
        """Return a new sandbox that is the session of a snapshot, by its id or its name."""
        written = self._find(wanted, tenant).written
        written.users += 1
        try:
            return await self._revived(written, reseed=reseed)
        finally:
            written.let_go()

    def snapshots(self, tenant: str) -> Sequence[Snapshot]:
        """Return the snapshots of a tenant, the oldest first."""
        return [each.snapshot for each in self._kept.values() if self._is_of(each, tenant)]

    def get(self, wanted: str, tenant: str) -> Snapshot:
        """Return a snapshot by its id or its name. Raises NotFound."""
        return self._find(wanted, tenant).snapshot

    def limits(self, wanted: str, tenant: str) -> Limits:
        """Return the limits of the sandboxes that a snapshot gives. Raises NotFound."""
        return self._find(wanted, tenant).written.heritage.spec.limits

    def delete(self, wanted: str, tenant: str) -> None:
        """Delete a snapshot; sandboxes that were made of it live on. Raises NotFound."""
        self._drop(self._find(wanted, tenant).snapshot.id)

    def close(self) -> None:
        """Delete every snapshot."""
        for snapshot_id in list(self._kept):
            self._drop(snapshot_id)

    def _drop(self, snapshot_id: str) -> None:
        kept = self._kept.pop(snapshot_id, None)
        if kept is not None:
            kept.expiry.cancel()
            kept.written.let_go()

    def _find(self, wanted: str, tenant: str) -> _Kept:
        own = [each for each in self._kept.values() if self._is_of(each, tenant)]
        for key in ("id", "name"):
            for kept in reversed(own):
                if getattr(kept.snapshot, key) == wanted:
                    return kept
        raise NotFound(
            f"snapshot {wanted[:64]!r}: there is none",
            remedy="list the snapshots; each has an end, and they end with their engine",
        )

    @staticmethod
    def _is_of(kept: _Kept, tenant: str) -> bool:
        return kept.written.heritage.tenant == tenant

    # -- both ------------------------------------------------------------------------------

    async def _write_down(
        self, source: AsyncSandbox, heritage: Heritage, drop_threads: bool
    ) -> _Written:
        """Write a session down; what it needs is kept until `let_go`."""
        live, runtime = source.live, self._host.runtime_of(source)
        copier = _copier_of(source, runtime)
        live.enter()
        async with source.contexts.turn(MAIN, None) as (name, _):
            live.enter()  # another caller may have paused it meanwhile
            await source.contexts.ensure(name)
            with live.being_copied():
                written = await self._written(live, copier, heritage.tenant, drop_threads)
            live.touch()
        image, files, budget = written
        others = [name for name in source.contexts.names() if name != DEFAULT]
        left = (*(f"context {name!r}" for name in others), *image.left)
        return _Written(runtime, copier, image, files, heritage, left, budget)

    async def _written(
        self, live: ClaimedSandbox, copier: SessionCopier, tenant: str, drop_threads: bool
    ) -> tuple[SessionImage, SessionFiles, SessionBudget]:
        """Have an idle session written, or leave nothing of it."""
        lineage = copier.lineage_of(live.runtime_sandbox)
        copier.keep_lineage(lineage)
        files, budget = None, self._host.room.begin(_most_of(live.spec.limits), tenant)
        try:
            files = copier.new_files(self._host.folder)
            with live.speaking():
                sandbox = live.runtime_sandbox
                image = await copier.write(sandbox, files, budget, drop_threads=drop_threads)
                return image, files, budget
        except BaseException as error:
            if files is not None:
                files.close()
            budget.give_back()
            copier.let_lineage_go(lineage)
            if isinstance(error, GuestRefused):
                raise _refused("copy the session", error) from None
            if isinstance(error, CapacityError) and budget.refusal is not None:
                raise budget.refusal from error
            if isinstance(error, OSError) and not isinstance(error, CellwallError):
                raise _short("copy the session", error) from error
            raise

    async def _revived(self, written: _Written, *, reseed: bool) -> AsyncSandbox:
        """Return a fresh sandbox that has become a session."""
        runtime, heritage = written.runtime, written.heritage
        spec = replace(heritage.spec, sandbox_id=new_id(), lineage=written.image.lineage)
        live = await self._host.claim(runtime, spec)
        # A copy can keep the image open: as long as it lives the engine's locks stay on it, or
        # what one copy locked would be a message to another.
        written.users += 1
        live.on_released = written.let_go
        try:
            with live.speaking():
                await written.copier.become(
                    live.runtime_sandbox, written.files, written.image, reseed=reseed
                )
        except BaseException as error:
            self._host.discard(live, runtime)
            if isinstance(error, GuestRefused):
                raise _refused("make the copy", error) from None
            raise
        live.touch()
        return await self._host.adopt(live, runtime, heritage)


def _most_of(limits: Limits) -> int:
    """Return the most bytes that a session with these limits may have to be written down.

    Twice what it can have: a copy's memory can be mapped from the image that it came from, which
    counts for none of its limits.
    """
    return 2 * (limits.memory_bytes + (limits.disk_mb << 20)) + _SLACK_BYTES


def _refused(step: str, refusal: GuestRefused) -> CellwallError:
    if refusal.reason in {"unsupported", "busy", "no_context", "too_large"}:
        return Conflict(f"{step}: {refusal}", remedy="see docs/state.md for what can be copied")
    if refusal.reason == "no_space":
        remedy = "raise the limits memory_mb or disk_mb, or remove files first"
        return CapacityError(f"{step}: {refusal}", retry_after_s=1.0, remedy=remedy)
    return SandboxBroken(f"{step}: {refusal}", remedy="please file a bug")


def _short(step: str, error: OSError) -> CapacityError:
    """Return the refusal of a host that lacks something."""
    remedy = "is this host short of descriptors, memory or disk?"
    return CapacityError(f"{step}: {error.strerror}", retry_after_s=1.0, remedy=remedy)


def _copier_of(source: AsyncSandbox, runtime: Runtime) -> SessionCopier:
    """Return what copies a sandbox, or raise what says why it cannot be copied."""
    spec = source.live.spec
    if not isinstance(runtime, CopiesSessions):
        raise HostUnsupported(
            "copies",
            f"fork: the runtime {runtime.name!r} cannot copy a session",
            remedy="use runtime 'jail'",
        )
    for has, what, remedy in (
        (spec.image is not None, "it is on an image", "use a template"),
        (bool(spec.volumes), "it has volumes", "keep what is to be copied in its own files"),
        (spec.start != "fork", "its interpreters share no layout", "leave start='exec' out"),
        (source.has_secrets, "it has secrets", "create the copy's sandbox with them"),
    ):
        if has:
            raise Conflict(f"fork: {source.id}: {what}", remedy=remedy)
    return runtime.copier
