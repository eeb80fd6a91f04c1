"""Forks of a live sandbox, and snapshots of it, for one engine.

`AsyncSandbox.fork` and `snapshot` call it; the runtime writes a session down and makes a fresh
sandbox that session (`CopiesSessions`). The invariant: a copy is a sandbox of its own from the
start, claimed and confined as any other, with the limits, the network policy and the owner of its
source; and what an image needs is kept until the image is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellwall.engine.parts.contexts import DEFAULT, MAIN
from cellwall.engine.parts.network import with_way_out
from cellwall.engine.policy.levels import NO_FLOOR, Floor
from cellwall.engine.state.copy_counts import CopyCounts, CopyStatistics, counted
from cellwall.engine.state.disk_budget import DiskBudget, SessionBudget
from cellwall.engine.state.durable import DurableSnapshots, Session
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    HostUnsupported,
    NotFound,
    SandboxBroken,
)
from cellwall.model.ids import accepted_id, new_id
from cellwall.model.snapshot import (
    CopyChoice,
    Fork,
    Snapshot,
    check_count,
    check_expiry,
    check_name,
)
from cellwall.runtimes.channel.replies import GuestRefused
from cellwall.runtimes.copies import CopiesFiles, CopiesSessions, StoresLineages

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.policy.pause_choice import PauseChoice
    from cellwall.engine.sandbox import AsyncSandbox
    from cellwall.engine.state.snapshot_header import Header
    from cellwall.model.limits import Limits
    from cellwall.model.network import NetworkPolicy
    from cellwall.model.snapshot import Scope
    from cellwall.runtimes.base import Runtime, SandboxSpec
    from cellwall.runtimes.copies import SessionCopier, SessionFiles, SessionImage
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
class Written:
    """A session that was written down, and what it needs as long as it is kept."""

    runtime: Runtime
    copier: SessionCopier
    """The runtime's part that wrote it."""
    image: SessionImage
    files: SessionFiles
    heritage: Heritage
    left: tuple[str, ...]
    budget: SessionBudget
    contexts: Mapping[str, str] = field(default_factory=dict)
    """The language of each context that copies have besides the default one, by name."""
    users: int = 1
    """Number of snapshots, of forks under way and of living copies that need it."""

    def let_go(self) -> None:
        """Give it up for one user; the last one removes it."""
        self.users -= 1
        if not self.users:
            self.files.close()
            self.budget.give_back()
            if self.image.lineage:
                self.copier.let_lineage_go(self.image.lineage)


class Host(NamedTuple):
    """The engine as copies need it."""

    folder: Path
    """Directory on whose file system sessions are written down, unless that must not be."""
    room: DiskBudget
    """Room for all sessions that are written down, kept or under way."""
    runtime_of: Callable[[AsyncSandbox], Runtime]
    claim: Callable[[Runtime, SandboxSpec], Awaitable[ClaimedSandbox]]
    adopt: Callable[[ClaimedSandbox, Runtime, Heritage], Awaitable[AsyncSandbox]]
    """Makes a claimed sandbox one of the engine's, with its way out."""
    discard: Callable[[ClaimedSandbox, Runtime], None]
    durable: DurableSnapshots | None
    """What keeps snapshots beyond the engine, if it has a place for them."""
    node: str
    """Name of the node that its ids begin with; empty: none."""
    revive: Callable[[Header, Floor], Awaitable[tuple[Runtime, Heritage]]]
    """Returns what a snapshot of an ended engine is restored with, as far as it is allowed now."""
    keeps_hibernated: bool = False
    """Whether hibernated sandboxes are kept beyond the engine, too."""

    def folder_of(self) -> Path | None:
        """Return where sessions are written down; None: in memory."""
        return self.folder if self.durable is None else self.durable.folder


@dataclass(slots=True)
class _Kept:
    snapshot: Snapshot
    tenant: str
    limits: Limits
    """Limits of the sandboxes that it gives."""
    expiry: asyncio.TimerHandle = field(repr=False)
    written: Written | None
    """The session as it was written down or loaded; None: it is in files alone."""
    header: Header | None = None
    """What is known of its files, if it has some."""
    budget: SessionBudget | None = None
    """What its files take, if nothing that is written down takes it."""
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def let_go(self) -> None:
        """Give it up, with what it takes; living copies take that on."""
        self.expiry.cancel()
        written, budget = self.written, self.budget
        self.written = self.budget = None
        if written is None:
            if budget is not None:
                budget.give_back()
            return
        if budget is not None:
            written.budget = budget
        written.let_go()


class Copies:
    """The forks and snapshots of one engine."""

    def __init__(self, host: Host) -> None:
        """Nothing is kept yet."""
        self._host = host
        self._durable = host.durable
        self.counts = CopyCounts()
        self._kept: dict[str, _Kept] = {}
        self.open()

    def open(self) -> None:
        """Learn what earlier engines stored, and remove what killed ones left half made."""
        if self._durable is not None:
            self._durable.sweep()
            self._look()

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
        choice: CopyChoice,
        *,
        reseed: bool,
    ) -> list[Fork[AsyncSandbox]]:
        """Return `count` copies of a session, each with an error in its place if it failed.

        Raises the error of the source: Conflict, HostUnsupported, CapacityError.
        """
        check_count(count)
        written = await self._write_down(source, heritage, choice)
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

    async def _tried(self, written: Written, *, reseed: bool) -> Fork[AsyncSandbox]:
        try:
            made = await self._revived(written, reseed=reseed)
        except CellwallError as error:
            return Fork(None, error, written.left, written.copier.carries)
        except OSError as error:
            return Fork(None, _short("fork", error), written.left, written.copier.carries)
        return Fork(made, None, written.left, written.copier.carries)

    # -- snapshots -------------------------------------------------------------------------

    @counted
    async def snapshot(
        self,
        source: AsyncSandbox,
        heritage: Heritage,
        name: str | None,
        expires_s: float,
        choice: CopyChoice,
    ) -> Snapshot:
        """Write a session down and keep it. Raises as `fork`."""
        snapshot_id = new_id(self._host.node)
        name = snapshot_id if name is None else check_name(name)
        check_expiry(expires_s)
        written = await self._write_down(source, heritage, choice)
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
            written.copier.carries,
        )
        header, copier = None, written.copier
        if self._durable is not None and isinstance(copier, StoresLineages):
            session = Session(copier, written.image, written.files)
            try:
                header = await self._durable.keep(made, session, heritage, written.runtime.name)
            except BaseException:
                written.let_go()
                raise
            made = replace(made, durable=True)
        self._keep(made, written, header)
        return made

    def _keep(self, made: Snapshot, written: Written, header: Header | None) -> None:
        """Have a snapshot known; one that must not be on a disk as it is stays in files alone."""
        limits, tenant = written.heritage.spec.limits, written.heritage.tenant
        kept = _Kept(made, tenant, limits, self._timer(made), written, header)
        self._kept[made.id] = kept
        if self._durable is not None and self._durable.folder is None and header is not None:
            kept.written, kept.budget = None, written.budget
            written.budget = self._host.room.begin(0)
            written.let_go()

    def _timer(self, made: Snapshot) -> asyncio.TimerHandle:
        left_s = made.expires_at - time.time()
        return asyncio.get_running_loop().call_later(max(0.0, left_s), self._drop, made.id)

    @counted
    async def restore(
        self,
        wanted: str,
        tenant: str,
        *,
        reseed: bool = True,
        floor: Floor = NO_FLOOR,
        sandbox_id: str = "",
    ) -> AsyncSandbox:
        """Return a new sandbox that is the session of a snapshot, by its id or its name.

        `floor`: the operator's demand on the tenant. `sandbox_id` as for a new one. Raises
        NotFound, and Conflict with the reason if a snapshot of an ended engine cannot go on in
        this one.
        """
        written = await self._loaded(self._find(wanted, tenant), floor)
        try:
            return await self._revived(written, reseed=reseed, sandbox_id=sandbox_id)
        finally:
            written.let_go()

    async def _loaded(self, kept: _Kept, floor: Floor) -> Written:
        """Return the session of a snapshot, for one user; it is loaded first if it is in files."""
        async with kept.loading:
            if kept.written is None:
                assert kept.header is not None  # noqa: S101  it would be nowhere
                written = await self.load(kept.header, floor)
                # Deleted meanwhile, or not to stay: it is for this caller alone.
                if kept.snapshot.id in self._kept and self._host.folder_of() is not None:
                    kept.written = written
                else:
                    return written
            kept.written.users += 1
            return kept.written

    async def load(self, header: Header, floor: Floor) -> Written:
        """Load what is stored, as far as it is allowed now. Raises Conflict, UsageError."""
        assert self._durable is not None  # noqa: S101  the header came from there
        runtime, heritage = await self._host.revive(header, floor)
        template = heritage.spec.template
        copier, image, files = await self._durable.load(header, runtime, template)
        left, budget = header.shown().left_behind, self._host.room.begin(0)
        return Written(runtime, copier, image, files, heritage, left, budget)

    def _look(self) -> None:
        """Learn what other engines stored, and forget what they removed."""
        if self._durable is None:
            return
        headers, gone = self._durable.look()
        for each in gone:
            kept = self._kept.pop(each, None)
            if kept is not None:
                kept.let_go()
        for header in headers:
            if header.id not in self._kept:
                made, budget = header.shown(), self._durable.hold(header)
                self._kept[made.id] = _Kept(
                    made, header.tenant, header.limits, self._timer(made), None, header, budget
                )

    def snapshots(self, tenant: str) -> Sequence[Snapshot]:
        """Return the snapshots of a tenant, the oldest first."""
        self._look()
        return [each.snapshot for each in self._kept.values() if each.tenant == tenant]

    def get(self, wanted: str, tenant: str) -> Snapshot:
        """Return a snapshot by its id or its name. Raises NotFound."""
        return self._find(wanted, tenant).snapshot

    def limits(self, wanted: str, tenant: str) -> Limits:
        """Return the limits of the sandboxes that a snapshot gives. Raises NotFound."""
        return self._find(wanted, tenant).limits

    def delete(self, wanted: str, tenant: str) -> None:
        """Delete a snapshot; sandboxes that were made of it live on. Raises NotFound."""
        self._drop(self._find(wanted, tenant).snapshot.id)

    def close(self) -> None:
        """Forget every snapshot; those that are stored stay."""
        for kept in self._kept.values():
            kept.let_go()
        self._kept.clear()

    def _drop(self, snapshot_id: str) -> None:
        kept = self._kept.pop(snapshot_id, None)
        if kept is None:
            return
        if self._durable is not None and kept.header is not None:
            self._durable.remove(snapshot_id)
        kept.let_go()

    def _find(self, wanted: str, tenant: str) -> _Kept:
        self._look()
        own = [each for each in self._kept.values() if each.tenant == tenant]
        for key in ("id", "name"):
            for kept in reversed(own):
                if getattr(kept.snapshot, key) == wanted:
                    return kept
        raise NotFound(
            f"snapshot {wanted[:64]!r}: there is none",
            remedy="list the snapshots; each has an end, which for some is that of their engine",
        )

    # -- both ------------------------------------------------------------------------------

    async def _write_down(
        self, source: AsyncSandbox, heritage: Heritage, choice: CopyChoice
    ) -> Written:
        """Write a session down; what it needs is kept until `let_go`."""
        live = source.live
        copier_of(live, self._host.runtime_of(source), choice.scope)
        await live.enter()
        async with source.contexts.turn(MAIN, None) as (name, _):
            await live.enter()  # another caller may have paused it meanwhile
            await source.contexts.ensure(name)
            written = await self.write_idle(source, heritage, choice)
            live.touch()
        return written

    async def write_idle(
        self, source: AsyncSandbox, heritage: Heritage, choice: CopyChoice
    ) -> Written:
        """Write down a session whose turn the caller holds."""
        live, runtime = source.live, self._host.runtime_of(source)
        copier = copier_of(live, runtime, choice.scope)
        with live.being_copied():
            written = await self._written(live, copier, heritage.tenant, choice)
        image, files, budget, variables = written
        if variables is not None:
            heritage = heritage._replace(spec=_recalled(heritage, variables))
        contexts = source.contexts.spoken()
        if copier.carries == "tree":
            return Written(runtime, copier, image, files, heritage, image.left, budget, contexts)
        others = [name for name in contexts if name != DEFAULT]
        left = (*(f"context {name!r}" for name in others), *image.left)
        return Written(runtime, copier, image, files, heritage, left, budget)

    async def write_files(self, source: AsyncSandbox, heritage: Heritage) -> Written:
        """Write down the files of a sandbox whose programs stand still, without its session."""
        live, runtime = source.live, self._host.runtime_of(source)
        copier = files_copier_of(live, runtime)
        with live.being_copied(), live.speaking():
            sandbox = live.runtime_sandbox
            _lineage, variables = await copier.source_of_files(sandbox)
            async with self._filling(live, copier, heritage.tenant) as (files, budget):
                image = await copier.write_files(sandbox, files, budget)
        if variables is not None:
            heritage = heritage._replace(spec=_recalled(heritage, variables))
        return Written(runtime, copier, image, files, heritage, (), budget)

    async def _written(
        self, live: ClaimedSandbox, copier: SessionCopier, tenant: str, choice: CopyChoice
    ) -> tuple[SessionImage, SessionFiles, SessionBudget, Mapping[str, str] | None]:
        """Have an idle session written, or leave nothing of it; return its variables, too.

        Those only if this engine does not know them.
        """
        drop = choice.drops_threads
        with live.speaking():
            lineage, variables = await copier.keep_source(live.runtime_sandbox)
        try:
            with live.speaking():
                async with self._filling(live, copier, tenant) as (files, budget):
                    sandbox = live.runtime_sandbox
                    image = await copier.write(sandbox, files, budget, drop_threads=drop)
        except BaseException:
            copier.let_lineage_go(lineage)
            raise
        return image, files, budget, variables

    @contextlib.asynccontextmanager
    async def _filling(
        self, live: ClaimedSandbox, copier: SessionCopier, tenant: str
    ) -> AsyncIterator[tuple[SessionFiles, SessionBudget]]:
        """Make the files of a session, and room for it; if the block fails, none of it is left."""
        files, budget = None, self._host.room.begin(_most_of(live.spec.limits), tenant)
        try:
            files = copier.new_files(self._host.folder_of())
            yield files, budget
        except BaseException as error:
            if files is not None:
                files.close()
            budget.give_back()
            if isinstance(error, GuestRefused):
                raise _refused("copy the session", error) from None
            if isinstance(error, CapacityError) and budget.refusal is not None:
                raise budget.refusal from error
            if isinstance(error, OSError) and not isinstance(error, CellwallError):
                raise _short("copy the session", error) from error
            raise

    async def _revived(
        self, written: Written, *, reseed: bool, sandbox_id: str = ""
    ) -> AsyncSandbox:
        """Return a fresh sandbox that has become a session, as one of its owner's."""
        runtime, heritage = written.runtime, written.heritage
        live = await self.become(written, reseed=reseed, sandbox_id=sandbox_id)
        made = await self._host.adopt(live, runtime, heritage)
        made.contexts.take_over(written.contexts)
        return made

    @property
    def durable(self) -> DurableSnapshots | None:
        """What keeps snapshots beyond the engine, if it has a place for them."""
        return self._durable

    @property
    def hibernated(self) -> DurableSnapshots | None:
        """What keeps hibernated sandboxes beyond the engine, if anything does."""
        return self._durable if self._host.keeps_hibernated else None

    def runtime_of(self, source: AsyncSandbox) -> Runtime:
        """Return the runtime of a sandbox."""
        return self._host.runtime_of(source)

    def discard(self, live: ClaimedSandbox, runtime: Runtime) -> None:
        """Destroy a claimed sandbox."""
        self._host.discard(live, runtime)

    async def become(
        self, written: Written, *, reseed: bool, sandbox_id: str = ""
    ) -> ClaimedSandbox:
        """Return a claimed sandbox that has become a session, and keeps it written as it lives."""
        runtime, heritage = written.runtime, written.heritage
        own = accepted_id(sandbox_id, self._host.node)
        spec = replace(heritage.spec, sandbox_id=own, saved=None)
        spec = written.copier.spec_of(spec, written.files, written.image, reseed=reseed)
        live = await self._host.claim(runtime, spec)
        live.be_called(sandbox_id)
        if written.image.has_session:
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
        return live


def _recalled(heritage: Heritage, variables: Mapping[str, str]) -> SandboxSpec:
    """Return the spec of a sandbox with the variables that it has, the engine's own among them."""
    own = with_way_out(heritage.spec, heritage.policy).own_env
    own = {name: value for name, value in own.items() if variables.get(name) == value}
    return replace(heritage.spec, env=variables, own_env=own)


def _most_of(limits: Limits) -> int:
    """Return the most bytes that a session with these limits may have to be written down.

    Twice what it can have: a copy's memory can be mapped from the image that it came from, which
    counts for none of its limits.
    """
    return 2 * (limits.memory_bytes + (limits.disk_mb << 20)) + _SLACK_BYTES


def _refused(step: str, refusal: GuestRefused) -> CellwallError:
    if refusal.reason in {"unsupported", "busy", "no_context", "too_large", "permission"}:
        remedy = "see docs/state.md for what can be copied"
        return Conflict(f"{step}: {refusal}", remedy=remedy, is_passing=refusal.reason == "busy")
    if refusal.reason == "no_space":
        remedy = "raise the limits memory_mb or disk_mb, or remove files first"
        return CapacityError(f"{step}: {refusal}", retry_after_s=1.0, remedy=remedy)
    return SandboxBroken(f"{step}: {refusal}", remedy="please file a bug")


def _short(step: str, error: OSError) -> CapacityError:
    """Return the refusal of a host that lacks something."""
    remedy = "is this host short of descriptors, memory or disk?"
    return CapacityError(f"{step}: {error.strerror}", retry_after_s=1.0, remedy=remedy)


def copier_of(
    live: ClaimedSandbox, runtime: Runtime, scope: Scope | None, step: str = "fork"
) -> SessionCopier:
    """Return what copies a sandbox, or raise what says why it cannot be copied."""
    spec = live.spec
    if not isinstance(runtime, CopiesSessions):
        raise HostUnsupported(
            "copies",
            f"fork: the runtime {runtime.name!r} cannot copy a session",
            remedy="use runtime 'jail' or 'gvisor'; Docker can only pause one",
        )
    if scope == "tree" and runtime.copier.carries != "tree":
        raise HostUnsupported(
            "copies",
            f"fork: the runtime {runtime.name!r} copies a session, not the tree of its processes",
            remedy="use runtime 'gvisor', or leave the scope out",
        )
    _refuse_parts(live, step)
    if spec.start != "fork":
        raise Conflict(
            f"{step}: {spec.sandbox_id}: its interpreters share no layout",
            remedy="leave start='exec' out",
        )
    return runtime.copier


def files_copier_of(live: ClaimedSandbox, runtime: Runtime, step: str = "hibernate") -> CopiesFiles:
    """Return what copies the files of a sandbox alone, or raise what says why they cannot be."""
    copier = runtime.copier if isinstance(runtime, CopiesSessions) else None
    if not isinstance(copier, CopiesFiles):
        raise HostUnsupported(
            step,
            f"{step}: the runtime {runtime.name!r} cannot write the files of a sandbox down alone",
            remedy="use runtime 'jail'; a pause keeps what runs in memory",
        )
    _refuse_parts(live, step)
    return copier


def _refuse_parts(live: ClaimedSandbox, step: str) -> None:
    """Raise Conflict if a sandbox has what no copy of it could have."""
    spec, network = live.spec, live.network
    has_secrets = network is not None and network.is_opened
    for has, what, remedy in (
        (spec.image is not None, "it is on an image", "use a template"),
        (bool(spec.volumes), "it has volumes", "keep what is to be copied in its own files"),
        (has_secrets, "it has secrets", "create the copy's sandbox with them"),
    ):
        if has:
            raise Conflict(f"{step}: {spec.sandbox_id}: {what}", remedy=remedy)
