"""Volumes of the server's door: those of one tenant, within the room that the operator gives it.

Volumes lie in the engine's store, by tenant. The invariants: a tenant names its own volumes only;
all of them together have at most the size that the operator permits, because each is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cellwall.model.errors import NotFound, QuotaExceeded, UsageError
from cellwall.server.core.errors import lacking

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.model.volume import Volume
    from cellwall.server.core.settings import ServerSettings

_MOST = 1000
"""Most volumes of one tenant, whatever their size."""


class VolumeDoor:
    """The volumes that callers of one server may use."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        """Touch nothing: most servers have no volumes."""
        self._engine = engine
        self._most_mb = settings.volumes_mb
        self._making = asyncio.Lock()

    def check(self, tenant: str, volumes: Mapping[str, str] | None) -> None:
        """Raise `UsageError` for volumes that cannot be, or where the operator permits none.

        A node raises HttpError for one that is not here: another may have it.
        """
        if volumes:
            from cellwall.model.volume import mounts_of  # most requests have none

            self._check_permitted()
            for each in mounts_of(volumes):
                self._check_here(tenant, each.name)

    def _check_here(self, tenant: str, name: str) -> None:
        if not self._engine.settings.node:
            return
        try:
            self._engine.volumes.check(name, tenant)
        except NotFound as error:
            raise lacking(error, "volume", name) from None

    def _check_permitted(self) -> None:
        if not self._most_mb:
            raise UsageError(
                "volumes: this server's operator permits none",
                remedy="leave them out, or ask the operator for the setting volumes_mb",
            )

    async def create(
        self, tenant: str, name: str, size_mb: int, inodes: int | None = None
    ) -> Volume:
        """Make a volume. Raises UsageError, Conflict, QuotaExceeded, HostUnsupported."""
        self._check_permitted()
        async with self._making:
            await self._check_room(tenant, size_mb)
            make = self._engine.volumes.create
            return await asyncio.to_thread(make, name, size_mb, inodes, tenant)

    async def copy(self, tenant: str, source: str, name: str) -> Volume:
        """Make a volume with the content of another. Raises NotFound, and as `create` does."""
        self._check_permitted()
        async with self._making:
            size_mb = (await self.get(tenant, source)).size_mb
            await self._check_room(tenant, size_mb)
            return await asyncio.to_thread(self._engine.volumes.copy, source, name, tenant)

    async def _check_room(self, tenant: str, size_mb: int) -> None:
        found = await self.found(tenant)
        used = sum(each.size_mb for each in found)
        if used + size_mb > self._most_mb or len(found) >= _MOST:
            raise QuotaExceeded(
                "volumes_mb",
                f"volume: {len(found)} volumes of {used} MiB and {size_mb} MiB more are more than "
                f"the {self._most_mb} MiB, or {_MOST} volumes, of a tenant",
                retry_after_s=60.0,
                remedy="remove a volume, or make a smaller one",
            )

    async def found(self, tenant: str) -> list[Volume]:
        """Return a tenant's volumes, by name."""
        return await asyncio.to_thread(self._engine.volumes.volumes, tenant)

    async def get(self, tenant: str, name: str) -> Volume:
        """Return one of them. Raises NotFound."""
        return await asyncio.to_thread(self._engine.volumes.get, name, tenant)

    async def remove(self, tenant: str, name: str) -> None:
        """Remove a volume and all that is in it. Raises NotFound, Conflict if it is in use."""
        await asyncio.to_thread(self._engine.volumes.remove, name, tenant)
