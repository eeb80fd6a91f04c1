"""The jail's part of images: unpacked by a process of its own, and mounted for each sandbox.

Runs on asyncio in the engine process; `runtime` calls it. Which images there are is in
`engine.images`. The invariant: a sandbox is started on an image only with ids that the image's
files have for it, on disk or by its mount.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.linux import uid_ranges
from cellwall.linux.syscalls import id_maps

if TYPE_CHECKING:
    from cellwall.runtimes.jail.images.id_mapper import Mapper
    from cellwall.runtimes.jail.images.unpacking import Unpacker
    from cellwall.runtimes.roots import ImageRoot


class Images:
    """Roots of images for the sandboxes of one runtime."""

    def __init__(self, state_dir: Path, ids: uid_ranges.Ids) -> None:
        """Start nothing yet."""
        self._state_dir, self._ids = state_dir, ids

    @cached_property
    def unpacker(self) -> Unpacker:
        """What unpacks and removes images. Raises HostUnsupported without ids for them."""
        from cellwall.runtimes.jail.images.unpacking import Unpacker  # most engines use no image

        return Unpacker(self._state_dir, self._ids)

    @cached_property
    def _mapper(self) -> Mapper:
        from cellwall.runtimes.jail.images.id_mapper import Mapper  # most engines use no image

        return Mapper(self._state_dir, maps=not self._ids.rootless)

    def check(self, image: ImageRoot | None) -> None:
        """Raise HostUnsupported if a sandbox on an image cannot have its user's ids."""
        if image is not None:
            self._ids.check_image_user(image.uid, image.gid)

    async def mount(self, image: ImageRoot, first: int) -> int:
        """Return a detached mount of an image for a sandbox with ids from `first` on.

        The caller owns the descriptor. Raises HostUnsupported, SandboxBroken.
        """
        self._ids.check_image_owner(image.tree)
        return await self._mapper.mount(image.tree, first, id_maps.IDS)

    async def aclose(self) -> None:
        """End the process that makes the mounts."""
        if "_mapper" in vars(self):
            await self._mapper.aclose()

    def abandon(self) -> None:
        """Close the parent's descriptors in a forked child, and end nothing."""
        if "_mapper" in vars(self):
            self._mapper.abandon()
