"""Snapshots that outlive their engine: stored when they are made, loaded when they are restored.

Called by `copies`, which knows what an owner sees. The files are `snapshot_files`'; what is in
them is a runtime's. The invariant: bytes on disk are counted from before they are written until
they are removed, also by the engine that finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cellwall.engine.state.snapshot_files import BASE, Coming, SnapshotFiles
from cellwall.engine.state.snapshot_header import Header
from cellwall.model.errors import CapacityError, CellwallError, Conflict, NotFound, SandboxBroken
from cellwall.runtimes.copies import CopiesSessions, SessionImage, StoresLineages
from cellwall.runtimes.lineages import LineageFacts
from cellwall.store import key_file

if TYPE_CHECKING:
    from cellwall.engine.state.asleep import Asleep
    from cellwall.engine.state.copies import Heritage
    from cellwall.engine.state.disk_budget import DiskBudget, SessionBudget
    from cellwall.model.snapshot import Snapshot
    from cellwall.model.template import BuiltTemplate
    from cellwall.runtimes.base import Runtime
    from cellwall.runtimes.copies import SessionFiles

R = TypeVar("R")
_HOME = "home.key"
"""Name of the file in the state directory that its name is made of."""
_HOME_CHARS = 32
_LEFT_S = 3600.0
"""Seconds after its end for which a hibernated sandbox is left to its own home."""
_BASES = "\0bases"
"""Whose the bases are in the budget: no tenant's, because snapshots of several share one."""


class Session(NamedTuple):
    """A session as it is stored, or loaded."""

    copier: StoresLineages
    image: SessionImage
    files: SessionFiles


@dataclass(slots=True)
class _Base:
    budget: SessionBudget
    lineage: str
    """Name of the stored lineage whose base it is."""
    snapshots: set[str]


class Begun(NamedTuple):
    """What is on the disk, and not there yet: `put`, or `give_up`."""

    durable: DurableSnapshots
    coming: Coming
    lineage: str
    taken: SessionBudget | None
    """Bytes of its base, if it is the first with that one."""

    def put(self) -> Header:
        """Have it there, at once; return its header. Raises CapacityError, with nothing left."""
        return self.durable.put(self)

    def give_up(self) -> None:
        """Remove it, in the background."""
        self.durable.give_up(self)


class DurableSnapshots:
    """The stored snapshots of one directory, as one engine knows them."""

    def __init__(self, files: SnapshotFiles, room: DiskBudget, folder: Path) -> None:
        """Nothing is known before `look`; `folder` is for working copies, which have no name."""
        self._files = files
        self._folder = folder
        self._room = room
        self._digests: dict[str, str] = {}
        """Digests of bases, by their lineage in this engine."""
        self._bases: dict[str, _Base] = {}
        """The bases on disk, by their digest."""
        self._known: set[str] = set()
        self._writing: set[str] = set()

    @property
    def folder(self) -> Path | None:
        """Where working copies of sessions are made; None: in memory, because a disk must not have
        them as they are."""
        return None if self._files.is_sealed else self._folder

    # -- what there is ---------------------------------------------------------------------

    def look(self) -> tuple[list[Header], set[str]]:
        """Return what is stored and was not known, and the ids of what is gone."""
        found = self._files.ids() - self._writing
        gone = self._known - found
        headers = [self._files.header(each) for each in sorted(found - self._known)]
        self._known = found
        for each in gone:
            self._forget_base(each)
        snapshots = [each for each in headers if each is not None and each.asleep is None]
        for header in headers:
            if header is not None and header.asleep is not None:
                self._remove_left(header)
        return sorted(snapshots, key=lambda each: each.created_at), gone

    def _remove_left(self, header: Header) -> None:
        """Remove a hibernated sandbox of another home that has been over for long.

        That home's engine would have removed it; this one's are `sleepers`'.
        """
        if header.expires_at + _LEFT_S < time.time() and not self._is_ours(header):
            self.remove(header.id)

    def hold(self, header: Header) -> SessionBudget:
        """Count what an earlier engine stored, whether there is room or not."""
        self._known.add(header.id)
        budget = self._room.begin(header.taken_bytes, header.tenant)
        budget.hold(header.taken_bytes)
        self._count_base(header)
        return budget

    def no_budget(self) -> SessionBudget:
        """Return the budget of what is counted elsewhere."""
        return self._room.begin(0)

    def sweep(self) -> int:
        """Remove what killed engines left half made."""
        return self._files.sweep()

    # -- storing ---------------------------------------------------------------------------

    async def keep(
        self, made: Snapshot, session: Session, heritage: Heritage, runtime: str
    ) -> Header:
        """Store a session that was written down. Raises CapacityError, HostUnsupported."""
        begun = await self.begin(made, session, heritage, runtime)
        stored = begun.put()
        try:
            await self.synchronise()
        except BaseException:
            self.remove(made.id)
            raise
        return stored

    async def begin(
        self,
        made: Snapshot,
        session: Session,
        heritage: Heritage,
        runtime: str,
        asleep: Asleep | None = None,
    ) -> Begun:
        """Write what was written down to the disk, and have it not there before `Begun.put`.

        `asleep`: what is known of the sandbox, if it is to be hibernated. Raises as `keep`.
        """
        facts = None
        if session.image.has_session:
            facts = await session.copier.facts_of(session.image.lineage)
        header = _header(made, session.image, heritage, facts, runtime)
        if asleep is not None:
            header = replace(header, asleep=asleep.as_json())
        self._writing.add(made.id)
        taken, coming = None, list[Coming]()
        try:
            with contextlib.ExitStack() as held:
                parts, digest = {"archive": session.files.archive}, ""
                if facts is not None:
                    digest = await self._digest_of(session.image.lineage)
                    if digest not in self._bases:
                        taken = self._taken_for_base(os.fstat(facts.base).st_size)
                    maps = os.memfd_create("maps", os.MFD_CLOEXEC)
                    held.callback(os.close, maps)
                    os.write(maps, facts.maps)
                    parts |= {"memory": session.files.memory, BASE: facts.base, "maps": maps}
                await _in_thread(lambda: coming.append(self._files.prepare(header, parts, digest)))
        except BaseException:
            for each in coming:
                each.give_up()
            self._gave_up(made.id, taken)
            raise
        return Begun(self, coming[0], session.image.lineage, taken)

    async def _digest_of(self, lineage: str) -> str:
        return self._digests.get(lineage) or await self._found_base(lineage)

    def put(self, begun: Begun) -> Header:
        """Have what was begun there: `Begun.put`."""
        stored = begun.coming.header
        try:
            self._files.publish(begun.coming)
        except BaseException:
            self.give_up(begun)
            raise
        if BASE in stored.parts:
            self._digests[begun.lineage] = stored.parts[BASE].digest
        self._count_base(stored, begun.taken)
        self._known.add(stored.id)
        self._writing.discard(stored.id)
        return stored

    def give_up(self, begun: Begun) -> None:
        """Remove what was begun: `Begun.give_up`."""
        self._gave_up(begun.coming.header.id, begun.taken)
        asyncio.get_running_loop().run_in_executor(None, begun.coming.give_up)

    def _gave_up(self, snapshot: str, taken: SessionBudget | None) -> None:
        if taken is not None:
            taken.give_back()
        self._writing.discard(snapshot)

    async def synchronise(self) -> None:
        """Return when what is there, and gone, is so after a loss of power. CapacityError."""
        await _in_thread(self._files.synchronise)

    # -- hibernated sandboxes --------------------------------------------------------------

    def asleep(self) -> tuple[list[Header], dict[str, str]]:
        """Return this home's hibernated sandboxes, and why other headers cannot be read, by id."""
        found, unread = [], dict[str, str]()
        for each in sorted(self._files.ids() - self._writing):
            try:
                header = self._files.read(each)
            except CellwallError as error:
                unread[each] = error.message
                continue
            if header is not None and header.asleep is not None and self._is_ours(header):
                found.append(header)
        return found, unread

    def _is_ours(self, header: Header) -> bool:
        return header.asleep is not None and header.asleep.get("home") == self.home

    @cached_property
    def home(self) -> str:
        """Name of this engine's state directory in the headers of its hibernated sandboxes.

        An engine of another one may use the same directory for snapshots. Raises UsageError.
        """
        key = key_file.read(self._folder / _HOME, "the name of this home", may_make=True)
        return hashlib.sha256(key).hexdigest()[:_HOME_CHARS]

    async def change(self, header: Header) -> Header:
        """Write the header of a hibernated sandbox anew; return it.

        Raises CapacityError, NotFound, Conflict if its variables cannot be read with this key.
        """
        if header.refusal:
            raise Conflict(
                f"{header.called}: {header.refusal}",
                remedy="give the engine the key that it was made with (snapshots_key_file)",
            )
        await _in_thread(lambda: self._files.change(header))
        if BASE not in header.parts:
            self._forget_base(header.id)
        return header

    async def retire(self, sandbox: str) -> None:
        """Have the image of one that has come back gone, also after a loss of power.

        Raises SandboxBroken if it cannot be removed.
        """
        going = self._files.take_away(sandbox)
        if going is None and self._files.is_there(sandbox):
            raise SandboxBroken(
                f"wake: {sandbox}: its image cannot be removed from the disk",
                remedy="have the operator look at snapshots_dir",
            )
        await self.synchronise()
        self._gone(sandbox, going)

    # -- loading ---------------------------------------------------------------------------

    async def load(self, header: Header, runtime: Runtime, template: BuiltTemplate) -> Session:
        """Copy a stored session, and have its lineage known and kept.

        Raises Damaged, NotFound, Conflict with what is not the same here, CapacityError.
        """
        copier = _copier_of(runtime)
        lineage = header.lineage
        if lineage:
            await self._adopt(header, copier, lineage, template)
        try:
            if lineage:
                self._digests[lineage] = header.parts[BASE].digest
            files = copier.new_files(self.folder)
            try:
                await _in_thread(lambda: self._copy(header, files))
            except BaseException:
                files.close()
                raise
        except BaseException:
            if lineage:
                copier.let_lineage_go(lineage)
            raise
        image = dict(header.image) | {"lineage": lineage, "left": tuple(header.image["left"])}
        return Session(copier, SessionImage(**image), files)

    async def _adopt(
        self, header: Header, copier: StoresLineages, lineage: str, template: BuiltTemplate
    ) -> None:
        """Copy the base of a stored session, and have the runtime know it."""
        with contextlib.suppress(NotFound):
            copier.keep_lineage(lineage)  # another snapshot brought it
            return
        base, maps = copier.new_files(self._folder)  # nothing of a caller's is in them
        try:
            await _in_thread(lambda: self._files.copy(header, BASE, base))
            await _in_thread(lambda: self._files.copy(header, "maps", maps))
            text = os.pread(maps, header.parts["maps"].size, 0)
            await copier.adopt_lineage(
                lineage, template, LineageFacts(header.fingerprint, base, text)
            )
        except BaseException:
            os.close(base)
            raise
        finally:
            os.close(maps)

    def _copy(self, header: Header, files: SessionFiles) -> None:
        if header.has_session:
            self._files.copy(header, "memory", files.memory)
        self._files.copy(header, "archive", files.archive)

    # -- removing --------------------------------------------------------------------------

    def remove(self, snapshot: str) -> None:
        """Remove a snapshot: it is gone at once, its bytes a little later."""
        self._gone(snapshot, self._files.take_away(snapshot))

    def _gone(self, snapshot: str, going: Path | None) -> None:
        self._known.discard(snapshot)
        self._forget_base(snapshot)
        if going is not None:
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, self._files.removed, going)

    async def _found_base(self, lineage: str) -> str:
        """Return the digest of a lineage's base if an earlier engine stored it; empty if none did.

        So a session that was taken over shares it with the snapshots that were made of it before.
        """
        for digest, base in list(self._bases.items()):
            if base.lineage == lineage and await _in_thread(
                lambda: self._files.has_base(digest, base.snapshots)  # noqa: B023  awaited here
            ):
                return digest
        return ""

    def _taken_for_base(self, size: int) -> SessionBudget:
        """Take the bytes of a base that no snapshot has yet. Raises CapacityError."""
        budget = self._room.begin_shared(size, _BASES)
        if not budget.take(size):
            raise CapacityError(
                f"snapshot: no room for the {size >> 20} MiB that it is compared with",
                retry_after_s=60.0,
                remedy="delete snapshots, or have the operator raise snapshots_mb",
            )
        return budget

    def _count_base(self, header: Header, taken: SessionBudget | None = None) -> None:
        """Count the base of a snapshot once for all that share it; `taken`: its bytes, if any are.

        One that is on disk already is counted whether there is room or not.
        """
        if BASE not in header.parts:
            return
        part = header.parts[BASE]
        counted = self._bases.get(part.digest)
        if counted is None:
            if taken is None:
                taken = self._room.begin_shared(part.stored, _BASES)
                taken.hold(part.stored)
            counted = self._bases[part.digest] = _Base(taken, header.lineage, set())
        elif taken is not None:
            taken.give_back()
        counted.snapshots.add(header.id)

    def _forget_base(self, snapshot: str) -> None:
        for digest, base in list(self._bases.items()):
            base.snapshots.discard(snapshot)
            if not base.snapshots:
                base.budget.give_back()
                del self._bases[digest]


def _copier_of(runtime: Runtime) -> StoresLineages:
    """Return what continues stored sessions. Raises Conflict."""
    copier = runtime.copier if isinstance(runtime, CopiesSessions) else None
    if not isinstance(copier, StoresLineages):
        raise Conflict(
            f"restore: the runtime {runtime.name!r} continues no stored sessions",
            remedy="restore it with the version of cellwall that made it",
        )
    return copier


def _header(
    made: Snapshot,
    image: SessionImage,
    heritage: Heritage,
    facts: LineageFacts | None,
    runtime: str,
) -> Header:
    spec = heritage.spec
    tools = heritage.tools
    return Header(
        id=made.id,
        name=made.name,
        tenant=heritage.tenant,
        created_at=made.created_at,
        expires_at=made.expires_at,
        template=made.template,
        template_digest=spec.template.digest,
        runtime=runtime,
        image={**asdict(image), "lineage": ""},
        parts={},
        fingerprint={} if facts is None else dict(facts.fingerprint),
        spec={
            "contexts": list(spec.contexts),
            "language": spec.language,
            "demand_hard": spec.demand_hard,
            "start": spec.start,
            "profile": spec.profile,
            "has_network": spec.has_network,
        },
        limits=spec.limits,
        network=heritage.policy.as_json(),
        trust=heritage.trust,
        tools=() if tools is None else tuple(sorted(tools.manifest["functions"])),
        auto_pause_s=heritage.pauses.auto_pause_s,
        resume=heritage.pauses.resume,
        hibernate_s=heritage.pauses.hibernate_s,
        left_behind=made.left_behind,
        is_sealed=False,
        private={"env": dict(spec.env), "own_env": dict(spec.own_env)},
    )


async def _in_thread(work: Callable[[], R]) -> R:
    """Do `work` in a thread, and return only once it has ended: it has descriptors of ours."""
    task: asyncio.Future[R] = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise
