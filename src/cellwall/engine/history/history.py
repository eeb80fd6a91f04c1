"""The history of one sandbox's work area: checkpoints made, compared, restored and dropped.

Used by `engine.parts.files`. Contents are kept in a pack on the engine's disk, where code inside
cannot reach them. While nothing runs, every process inside is stopped for as long as the guest
reads or writes the work area. The invariants: a checkpoint is whole or not there, and a rollback
that returns has been compared with its checkpoint; one that is not complete says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.engine.history import exchange
from cellwall.engine.history import plan as plans
from cellwall.engine.history.exchange import in_thread
from cellwall.engine.history.manifest import Manifest, changes, differing, name_of
from cellwall.engine.history.pack import Pack
from cellwall.engine.history.receiving import Receiver
from cellwall.engine.history.text_diff import MOST_BYTES, unified
from cellwall.guest.files import tree_records as records
from cellwall.model.errors import CapacityError, Conflict, FileError, NotFound
from cellwall.model.history import MOST_CHECKPOINTS, Checkpoint, FileChange, Rollback, check_name
from cellwall.model.ids import new_id
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import GuestRefused

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.history.manifest import Entry
    from cellwall.engine.history.room import Share

MOST_FILES = 50_000
"""Most entries of a work area that has a history."""
_PATIENCE_S = 300.0
"""Seconds for one reading or restoration; only hostile code, or a work area of many GiB, needs
more."""
_MOST_NAMED = 3


ReadNow = Callable[["ClaimedSandbox", str, int], Awaitable[bytes]]
"""Returns a file of the work area as it is now, if it has at most that many bytes."""


@dataclass(slots=True)
class _Kept:
    """A checkpoint, and where its manifest lies in the pack."""

    checkpoint: Checkpoint
    manifest: tuple[int, int]


class History:
    """The checkpoints of one sandbox."""

    def __init__(self, live: ClaimedSandbox, share: Share, read_now: ReadNow) -> None:
        """Make the file that contents are kept in. Raises `UsageError` where none are permitted."""
        self._read_now = read_now
        share.check_permitted()
        self._live = live
        self._share = share
        self._kept: dict[str, _Kept] = {}
        self._turn = asyncio.Lock()
        self._charged = 0
        self._is_open = True
        with _disk():
            self._pack = Pack(share.folder)

    # -- what callers ask --------------------------------------------------------------------------

    async def checkpoint(self, name: str | None = None) -> Checkpoint:
        """Keep the work area as it is now."""
        name = check_name(name)
        async with self._alone():
            if len(self._kept) >= MOST_CHECKPOINTS:
                raise Conflict(
                    f"checkpoint: there are {MOST_CHECKPOINTS}, which is the most",
                    remedy="drop one",
                )
            end = self._pack.end
            try:
                async with self._quiet():
                    manifest, unsteady = await self._scan(self._pack)
                return await self._keep(name, manifest, end, unsteady)
            except BaseException:
                self._pack.cut(end)
                raise
            finally:
                self._charge()

    async def _keep(
        self, name: str | None, manifest: Manifest, end: int, unsteady: tuple[str, ...]
    ) -> Checkpoint:
        with _disk():
            place = await in_thread(lambda: self._pack.put(manifest.packed()))
        self._charge()
        files = [each for each in manifest.entries.values() if each.kind == records.FILE]
        self._pack.use(_digests(manifest))
        made = Checkpoint(
            id=new_id(),
            name=name,
            created_at=time.time(),
            files=len(files),
            bytes=sum(each.size for each in files),
            new_bytes=place[0] - end,
            unsteady=unsteady,
        )
        self._kept[made.id] = _Kept(made, place)
        return made

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints, the oldest first."""
        return [each.checkpoint for each in self._kept.values()]

    async def diff(self, since: str | None = None, until: str | None = None) -> list[FileChange]:
        """Return what differs between two checkpoints, or between one and now."""
        async with self._alone():
            before = await self._manifest(self._find(since))
            after = await self._until(until)
            return await in_thread(lambda: changes(before, after))

    async def diff_text(self, path: str, since: str | None = None, until: str | None = None) -> str:
        """Return a unified diff of one file."""
        name = _below_top(path)
        async with self._alone():
            before = await self._manifest(self._find(since))
            if until is None:
                return await self._diff_with_now(name, before)
            after = await self._manifest(self._find(until))
            old, new = self._content(before, name), self._content(after, name)
            return await in_thread(lambda: unified(old, new, name_of(name)))

    async def rollback(self, checkpoint_id: str) -> Rollback:
        """Make the work area what it was, and compare it with the checkpoint afterwards."""
        async with self._alone():
            kept = self._find(checkpoint_id)
            if self._live.running:
                raise Conflict(
                    f"rollback: {len(self._live.running)} executions or commands are running",
                    remedy="wait for them or end them; the work area is as it was",
                )
            if self._live.copies_under_way:
                raise Conflict(
                    "rollback: the sandbox is being copied",
                    remedy="wait for the fork or snapshot; the work area is as it was",
                )
            self._live.is_restoring = True
            try:
                async with self._quiet():
                    return await self._restore(kept)
            finally:
                self._live.is_restoring = False

    async def drop(self, checkpoint_id: str) -> None:
        """Forget a checkpoint, and give back the disk that only it needed."""
        async with self._alone():
            kept = self._find(checkpoint_id)
            digests = _digests(await self._manifest(kept))
            others = [each for each in self._kept.values() if each is not kept]
            with _disk():
                places = await in_thread(
                    lambda: self._pack.drop(digests, [each.manifest for each in others])
                )
            for each, place in zip(others, places, strict=True):
                each.manifest = place
            del self._kept[kept.checkpoint.id]
            self._charge()

    def close(self) -> None:
        """Forget all of it; called when the sandbox has ended. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._share.change(self._charged, 0)
        self._charged = 0
        if not self._turn.locked():
            self._pack.close()  # otherwise the call under way does it, at its end

    # -- steps -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One call at a time; a sandbox that has ended has no history."""
        self._live.check_alive()
        async with self._turn:
            self._live.check_alive()
            try:
                yield
            finally:
                if not self._is_open:
                    self._pack.close()

    @contextlib.asynccontextmanager
    async def _quiet(self) -> AsyncIterator[None]:
        """Stop what is inside for the block, if nothing is running there for a caller."""
        if self._live.running:
            yield
            return
        try:
            await self._live.channel.request("hold")
            yield
        finally:
            if self._live.is_alive:
                self._live.channel.tell("release")

    async def _scan(self, pack: Pack | None) -> tuple[Manifest, tuple[str, ...]]:
        receiver = Receiver(pack, MOST_FILES)
        known = None if pack is None else pack.digests()
        with _disk(), _in_time("reading the work area"):
            async with asyncio.timeout(_PATIENCE_S):
                return await exchange.scan(
                    self._live, receiver, MOST_FILES, known, self._charge
                ), tuple(receiver.unsteady)

    async def _until(self, checkpoint_id: str | None) -> Manifest:
        if checkpoint_id is not None:
            return await self._manifest(self._find(checkpoint_id))
        async with self._quiet():
            return (await self._scan(None))[0]

    async def _manifest(self, kept: _Kept) -> Manifest:
        place, length = kept.manifest
        with _disk():
            return await in_thread(lambda: Manifest.unpacked(self._pack.read(place, length)))

    async def _restore(self, kept: _Kept) -> Rollback:
        wanted = await self._manifest(kept)
        current, _ = await self._scan(None)
        made = await in_thread(lambda: plans.plan(current, wanted))
        said: dict[str, object] = {}
        if not made.is_empty:
            with _incomplete():
                said = await self._follow(made)
                found, _ = await self._scan(None)
            self._check(wanted, found, said)
        return Rollback(
            id=kept.checkpoint.id,
            restored=len(made.made) + len(made.dressed),
            removed=made.extra,
            left_out=tuple(name_of(each.path) for each in made.left_out),
        )

    async def _follow(self, made: plans.Plan) -> dict[str, object]:
        with _disk(), _in_time("restoring the work area"):
            async with asyncio.timeout(_PATIENCE_S):
                return await exchange.restore(self._live, self._steps(made))

    def _steps(self, made: plans.Plan) -> Iterator[bytes]:
        first, last = plans.before_and_after(made)
        yield from first
        for each in made.made:
            kind = plans.of_made(each)
            yield plans.record(kind, each)
            if kind == records.CONTENT:
                for offset, data in self._pack.pieces(each.digest):
                    yield records.PIECE.pack(b"D-", offset, len(data)) + data
                yield records.END.pack(b"Z-")
        yield from last

    def _check(self, wanted: Manifest, found: Manifest, said: dict[str, object]) -> None:
        """Raise unless the work area is what it was."""
        left = differing(wanted, found)
        if not left:
            return
        names = ", ".join(repr(name_of(path))[:200] for path in left[:_MOST_NAMED])
        message = (
            f"rollback: incomplete: {len(left)} of {len(wanted.entries)} entries are not as they "
            f"were, among them {names}"
        )
        first = said.get("first")
        if isinstance(first, list) and first:
            message += f"; inside: {first[0]!s:.300}"
        if said.get("no_space") is True:
            raise FileError(
                message, reason="no_space", remedy="free space outside of it and roll back again"
            )
        raise Conflict(message, remedy="end what changes it and roll back again")

    async def _diff_with_now(self, name: bytes, before: Manifest) -> str:
        old = self._content(before, name)
        shown = name_of(name)
        try:
            now: bytes | None = await self._read_now(self._live, shown, MOST_BYTES)
        except GuestRefused as refusal:
            if refusal.reason not in {"not_found", "not_directory"}:
                raise
            now = None
        if old is None and now is None:
            raise NotFound(f"diff: {shown!r} is there neither before nor after", remedy="list it")
        return await in_thread(lambda: unified(old, now, shown))

    def _content(self, manifest: Manifest, name: bytes) -> bytes | None:
        found = manifest.entries.get(name)
        if found is None:
            return None
        if found.kind != records.FILE:
            raise FileError(f"diff {name_of(name)!r}: is no regular file", reason="invalid")
        if found.size > MOST_BYTES:
            raise FileError(
                f"diff {name_of(name)!r}: it has more than {MOST_BYTES} bytes", reason="too_large"
            )
        return self._whole(found)

    def _whole(self, found: Entry) -> bytes:
        data = bytearray(found.size)
        for offset, piece in self._pack.pieces(found.digest):
            data[offset : offset + len(piece)] = piece
        return bytes(data)

    def _find(self, checkpoint_id: str | None) -> _Kept:
        if checkpoint_id is None and self._kept:
            return list(self._kept.values())[-1]
        found = self._kept.get(checkpoint_id or "")
        if found is None:
            what = "there is none" if checkpoint_id is None else f"{checkpoint_id!r:.80} is none"
            raise NotFound(f"checkpoint: {what} of this sandbox", remedy="make or list checkpoints")
        return found

    def _charge(self) -> None:
        """Count what the pack takes. Raises `QuotaExceeded`."""
        if self._is_open:
            self._share.change(self._charged, self._pack.taken_bytes)
            self._charged = self._pack.taken_bytes


def _digests(manifest: Manifest) -> set[bytes]:
    return {each.digest for each in manifest.entries.values() if each.kind == records.FILE}


def _below_top(path: str) -> bytes:
    """Return the path of a file as manifests have it."""
    parts = [part for part in path.encode("utf-8", "surrogateescape").split(b"/") if part != b"."]
    if path.startswith("/") or b".." in parts or not b"/".join(parts):
        raise FileError(
            f"diff {path!r:.200}: must be below the working directory",
            reason="invalid",
            remedy="name it as the list of changes does",
        )
    return b"/".join(part for part in parts if part)


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    """Translate failures of the engine's own disk; the guest's are of another class."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise CapacityError(
            f"checkpoint: the engine's disk: {error.strerror or error}",
            retry_after_s=60.0,
            remedy="make room below the state directory",
        ) from None


@contextlib.contextmanager
def _incomplete() -> Iterator[None]:
    """Say of a failure that the work area is neither what it was nor what it was to be."""
    try:
        yield
    except (GuestRefused, FrameError, CapacityError, Conflict) as error:
        raise Conflict(
            f"rollback: incomplete: {error}", remedy="roll back again, or close the sandbox"
        ) from None


@contextlib.contextmanager
def _in_time(step: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Conflict(
            f"{step} took more than {_PATIENCE_S:g} s", remedy="end what runs inside, or close it"
        ) from None
