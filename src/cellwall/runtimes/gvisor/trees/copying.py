"""Copies of gVisor sandboxes: forks and snapshots with every process, as `SessionCopier`.

`runsc` writes its kernel down, with all memory inside; `tar` its work area. A copy is started as
any sandbox, in cgroups, namespaces and a work area of its own, but with `restore` in place of
`run`. The invariant: nothing of a copy but its init runs before its processes were compared; and a
source that `runsc` had to end is back, or its end is an error, before `write` returns.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cellwall.linux import nameless
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Conflict,
    HostUnsupported,
    SandboxBroken,
)
from cellwall.runtimes.channel.replies import ChannelLost, Reply
from cellwall.runtimes.channel.stand_by import stand_by, wake
from cellwall.runtimes.copies import SessionImage, Source
from cellwall.runtimes.gvisor.trees import writing
from cellwall.runtimes.shared.saved_tree import SavedTree, TreeFiles

if TYPE_CHECKING:
    from cellwall.model.snapshot import Scope
    from cellwall.runtimes.base import RuntimeSandbox, SandboxSpec
    from cellwall.runtimes.copies import Budget, SessionFiles
    from cellwall.runtimes.gvisor.sandbox import GvisorSandbox
    from cellwall.runtimes.gvisor.trees.abilities import Abilities

_SLACK_BYTES = 32 << 20
_MOST_LEFT = 100


@dataclass(frozen=True, slots=True)
class Ways:
    """What the copier needs of the runtime."""

    folder: Path
    abilities: Callable[[], Awaitable[Abilities]]
    """Returns how `runsc` writes a sandbox down; raises HostUnsupported."""
    bring_back: Callable[[GvisorSandbox, SavedTree], Awaitable[None]]
    """Starts a sandbox again that was ended when it was written down."""


class TreeCopier:
    """The copies of one gVisor runtime's sandboxes."""

    carries: Scope = "tree"

    def __init__(self, ways: Ways) -> None:
        """Nothing is under way."""
        self._ways = ways
        self._known: Abilities | None = None
        self._asking = asyncio.Lock()

    async def keep_source(self, sandbox: RuntimeSandbox) -> Source:
        """Return what a copy must have in common: its configuration, `runsc`, and its platform."""
        return Source(_ours(sandbox).lineage)

    def keep_lineage(self, lineage: str) -> None:
        """Do nothing: an image needs no process; a start compares the lineage."""

    def let_lineage_go(self, lineage: str) -> None:
        """Do nothing."""

    def spec_of(
        self, spec: SandboxSpec, files: SessionFiles, image: SessionImage, *, reseed: bool
    ) -> SandboxSpec:
        """Return the spec of a copy: it continues from the image as it starts."""
        at = (image.epoch, image.last_id)
        saved = _saved(cast("TreeFiles", files), image.lineage, at, reseed=reseed)
        return replace(spec, saved=saved)

    def new_files(self, folder: Path | None) -> TreeFiles:
        """Make the empty files of a sandbox. Raises HostUnsupported if none may be on a disk."""
        if folder is None:
            raise HostUnsupported(
                "copies",
                "fork: runsc writes a sandbox to a disk as it is, and snapshots are encrypted here",
                remedy="use runtime 'jail', or have the operator leave snapshots_key_file out",
            )
        image = nameless.made_in(folder)
        try:
            return TreeFiles(image, nameless.made_in(folder))
        except BaseException:
            os.close(image)
            raise

    async def write(
        self,
        sandbox: RuntimeSandbox,
        files: SessionFiles,
        budget: Budget,
        *,
        drop_threads: bool = False,
    ) -> SessionImage:
        """Write a sandbox to files; a caller that goes away does not stop it half way."""
        del drop_threads  # they come along
        into = cast("TreeFiles", files)
        work = asyncio.ensure_future(self._write(_ours(sandbox), into, budget))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    async def _write(self, source: GvisorSandbox, files: TreeFiles, budget: Budget) -> SessionImage:
        writing.check_tools()
        ability = await self._abilities()
        if not ability.stays and source.has_way_out:
            raise Conflict(
                "fork: this runsc ends what it writes down, and a sandbox with a network cannot "
                "be started again",
                remedy="install a newer runsc, as Debian 13 has, or create it without a network",
            )
        expected = _size_of(source)
        # A full disk would end the source with a `runsc` that does not leave it running.
        if not budget.take(expected) or writing.free_bytes(files.archive) < expected:
            raise _no_room(expected)
        image = await self._written(source, files, ability)
        if not budget.take(image.memory_bytes + image.files_bytes - expected):
            raise _no_room(image.memory_bytes + image.files_bytes)
        return image

    async def _abilities(self) -> Abilities:
        async with self._asking:
            if self._known is None:
                self._known = await self._ways.abilities()
        return self._known

    async def _written(
        self, source: GvisorSandbox, files: TreeFiles, ability: Abilities
    ) -> SessionImage:
        epoch = secrets.token_hex(16)
        reply = await stand_by(source.channel, epoch)
        last_id = source.channel.last_id
        try:
            await self._saved(source, files, ability)
            if not ability.stays:
                saved = _saved(files, source.lineage, (epoch, last_id), reseed=False)
                await self._ways.bring_back(source, saved)
        except BaseException as error:
            await self._recovered(source, epoch, stays=ability.stays, error=error)
            raise
        if ability.stays:
            await wake(source.channel, epoch)
        return _image(source.lineage, files, reply, (epoch, last_id))

    async def _saved(self, source: GvisorSandbox, files: TreeFiles, ability: Abilities) -> None:
        """Have `runsc` write the sandbox down, and its area packed while no process runs."""
        area = source.another_area()
        if not ability.stays:
            source.leave()
        try:
            files.put(
                await asyncio.to_thread(
                    writing.take, source.pid, ability.runsc, self._ways.folder, ability.flags
                )
            )
            await asyncio.to_thread(writing.pack, area, files.archive)
        finally:
            os.close(area)

    async def _recovered(
        self, source: GvisorSandbox, epoch: str, *, stays: bool, error: BaseException
    ) -> None:
        """Have a source go on that could not be written down, or end it with the reason."""
        if stays or source.is_left:
            try:
                source.stay()
                await wake(source.channel, epoch)
            except (CellwallError, ChannelLost):
                pass
            else:
                return
        source.kill()
        source.channel.close(f"it was lost in a copy: {error}")

    async def become(
        self, sandbox: RuntimeSandbox, files: SessionFiles, image: SessionImage, *, reseed: bool
    ) -> None:
        """Do nothing: the sandbox has been the copy since its start."""

    async def make_ready(self, sandbox: RuntimeSandbox) -> None:
        """Do nothing: a copy is ready when it has started."""


def _ours(sandbox: RuntimeSandbox) -> GvisorSandbox:
    return cast("GvisorSandbox", sandbox)  # the engine gives each runtime its own


def _saved(files: TreeFiles, lineage: str, at: tuple[str, int], *, reseed: bool) -> SavedTree:
    return SavedTree(files.image, files.archive, lineage, *at, reseed)


def _size_of(source: GvisorSandbox) -> int:
    """Return the most bytes that a sandbox takes on disk: its memory, gVisor's, and its files."""
    now = source.readings()
    return now.memory_bytes + now.work_bytes + _SLACK_BYTES


def _no_room(expected: int) -> CapacityError:
    return CapacityError(
        f"copy a sandbox: no room for {expected >> 20} MiB",
        retry_after_s=1.0,
        remedy="drop what it does not need, delete snapshots, or raise snapshots_mb",
    )


def _image(lineage: str, files: TreeFiles, reply: Reply, at: tuple[str, int]) -> SessionImage:
    archive, *parts = (os.fstat(fd).st_size for fd in (files.archive, *files.image))
    memory = sum(parts)
    if not archive or not all(parts):
        raise SandboxBroken("gVisor: copy the sandbox: an empty image", remedy="fork it again")
    left = reply.header.get("left")
    told = [each for each in left if isinstance(each, str)] if isinstance(left, list) else []
    kept = tuple(each[:_MOST_LEFT] for each in told[:_MOST_LEFT])
    epoch, last_id = at
    return SessionImage(lineage, 0, 0, 0, 0, memory, archive, kept, epoch, last_id)
