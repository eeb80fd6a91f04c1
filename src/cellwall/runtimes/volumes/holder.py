"""Who has which volume: the leases of one engine's sandboxes on mounted volumes.

Runs on asyncio in the engine process, for every runtime that can mount one. The invariants: at most
one lease of a volume may write; a volume is mounted while it has leases, and not longer; its lock
(`locks`) is taken before the mount, and it is our open file that the loop device holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellwall.model.errors import CellwallError, Conflict, SandboxBroken
from cellwall.runtimes.roots import VolumeRoot
from cellwall.runtimes.volumes import locks
from cellwall.runtimes.volumes.keeper_process import KeeperProcess

Ids = Sequence[tuple[int, int, int]]
"""First id on disk, first id of the host that is shown for it, and the number of ids."""


@dataclass(slots=True, eq=False)
class Lease:
    """The volumes of one sandbox, which are mounted for as long as it has them."""

    volumes: tuple[VolumeRoot, ...]
    is_ending: bool = False
    """Whether its sandbox was killed; what it holds will soon be free."""
    released: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Mounted:
    number: int
    file: int
    """The open file that is locked, and that the loop device was given."""
    is_writable: bool
    generation: int
    leases: set[Lease] = field(default_factory=set)
    writer: Lease | None = None


class Holder:
    """The volumes that one engine has mounted."""

    def __init__(self, state_dir: Path) -> None:
        """Mount nothing yet."""
        self._keeper = KeeperProcess(state_dir)
        self._mounted: dict[str, _Mounted] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._numbers = itertools.count(1)
        self._under_way: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Have the first volume sooner: the process that mounts them is started now."""
        with contextlib.suppress(CellwallError, OSError):  # the start that needs it raises it
            await self._keeper.prepare()

    async def hold(self, volumes: Sequence[VolumeRoot]) -> Lease:
        """Have volumes mounted for a sandbox; the caller must `release` them.

        Raises Conflict if one is in use elsewhere, NotFound, HostUnsupported, CapacityError.
        """
        lease = Lease(tuple(volumes))
        holding = self._begin(self._join_all(lease))
        try:
            await asyncio.shield(holding)
        except asyncio.CancelledError:
            self._begin(self._drop(holding, lease))
            raise
        return lease

    async def _join_all(self, lease: Lease) -> None:
        try:
            for volume in lease.volumes:
                await self._join(volume, lease)
        except BaseException:
            await self.release(lease)
            raise

    async def _drop(self, holding: asyncio.Task[None], lease: Lease) -> None:
        await asyncio.gather(holding, return_exceptions=True)
        await self.release(lease)

    async def _join(self, volume: VolumeRoot, lease: Lease) -> None:
        while True:
            async with self._locks.setdefault(volume.folder, asyncio.Lock()):
                mounted = self._mounted.get(volume.folder)
                writer = None if mounted is None else mounted.writer
                if volume.read_only or writer is None:
                    await self._add(volume, mounted, lease)
                    return
            if not writer.is_ending:
                raise locks.in_use(Path(volume.folder), "another sandbox writes to it")
            await writer.released.wait()

    async def _add(self, volume: VolumeRoot, mounted: _Mounted | None, lease: Lease) -> None:
        if mounted is None:
            mounted = await self._mount(volume)
        elif not volume.read_only and not mounted.is_writable:
            self._check(mounted, volume)
            await asyncio.to_thread(locks.upgrade, Path(volume.folder), mounted.file)
            await self._keeper.ask({"do": "writable", "id": mounted.number})
            mounted.is_writable = True
        mounted.leases.add(lease)
        if not volume.read_only:
            mounted.writer = lease

    async def _mount(self, volume: VolumeRoot) -> _Mounted:
        is_writable = not volume.read_only
        file = await asyncio.to_thread(locks.acquire, Path(volume.folder), exclusive=is_writable)
        number = next(self._numbers)
        try:
            request = {"do": "mount", "id": number, "read_only": volume.read_only}
            await self._keeper.ask(request, [file])
        except BaseException:
            os.close(file)
            raise
        made = _Mounted(number, file, is_writable, self._keeper.generation)
        self._mounted[volume.folder] = made
        return made

    def _check(self, mounted: _Mounted, volume: VolumeRoot) -> None:
        if mounted.generation != self._keeper.generation:
            raise SandboxBroken(
                f"volume {volume.name}: its keeper was killed",
                remedy="end the sandboxes that have it, then try again",
            )

    async def view(self, volume: VolumeRoot, ids: Ids, groups: Ids = ()) -> int:
        """Return a detached mount of a held volume, for one sandbox; the caller owns it.

        Its files have the ids `ids`, and `groups` for groups if these are others. Raises
        HostUnsupported, SandboxBroken.
        """
        mounted = self._mounted.get(volume.folder)
        if mounted is None:
            raise Conflict(f"volume {volume.name}: it is not held")
        self._check(mounted, volume)
        request = {"do": "view", "id": mounted.number, "read_only": volume.read_only}
        maps = {"ids": [list(each) for each in ids], "groups": [list(each) for each in groups]}
        (made,) = await self._keeper.ask({**request, **maps})
        return made

    async def attach(
        self, process: int, views: Sequence[int], paths: Sequence[str], owner: tuple[int, int]
    ) -> None:
        """Attach views at paths of the mount namespace of a process, of which `process` is a pidfd.

        SECURITY: the process runs our own code, which waits, and no other has that namespace.
        Directories that are missing are made, for `owner`. Raises HostUnsupported, SandboxBroken.
        """
        request = {"do": "attach", "paths": list(paths), "owner": list(owner)}
        await self._keeper.ask(request, [process, *views])

    async def release(self, lease: Lease) -> None:
        """Give up what a lease holds; volumes without leases are unmounted. Idempotent."""
        try:
            for volume in lease.volumes:
                async with self._locks.setdefault(volume.folder, asyncio.Lock()):
                    await self._leave(volume, lease)
        finally:
            lease.released.set()

    async def _leave(self, volume: VolumeRoot, lease: Lease) -> None:
        mounted = self._mounted.get(volume.folder)
        if mounted is None or lease not in mounted.leases:
            return
        mounted.leases.discard(lease)
        if mounted.writer is lease:
            mounted.writer = None
        if not mounted.leases:
            await self._unmount(volume.folder, mounted)
        elif mounted.is_writable and mounted.writer is None:
            await self._yield_writing(volume, mounted)

    async def _yield_writing(self, volume: VolumeRoot, mounted: _Mounted) -> None:
        """Only read from now on, so that other engines may, too."""
        with contextlib.suppress(CellwallError):  # then nothing changes
            await self._keeper.ask({"do": "read_only", "id": mounted.number})
            mounted.is_writable = False
            await asyncio.to_thread(locks.downgrade, Path(volume.folder), mounted.file)

    async def _unmount(self, folder: str, mounted: _Mounted) -> None:
        del self._mounted[folder]
        try:
            if mounted.generation == self._keeper.generation:
                await self._keeper.ask({"do": "unmount", "id": mounted.number})
        except CellwallError:
            await self._keeper.aclose()  # and so its mounts end, also one that it could not end
        finally:
            os.close(mounted.file)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def aclose(self) -> None:
        """Unmount everything."""
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for folder, mounted in list(self._mounted.items()):
            await self._unmount(folder, mounted)
        await self._keeper.aclose()

    def abandon(self) -> None:
        """Close the parent's descriptors in a forked child, and unmount nothing."""
        self._keeper.abandon()
        for mounted in self._mounted.values():
            os.close(mounted.file)
        self._mounted.clear()
