"""Volumes of a server: made, listed, copied and removed, of the caller's own tenant.

Made by the clients. The objects are the server's own (`GET /volumes`), as JSON. Files come in and
out by a sandbox: `client.Sandbox(volumes={"data": "/data"})`.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from cellwall.client.connection.transport import Ask, Transport, segment

if TYPE_CHECKING:
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.connection.transport import Json
    from cellwall.surface.sync.loop_thread import LoopThread


class AsyncVolumes:
    """The volumes of one tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, name: str, size_mb: int = 1024, inodes: int | None = None) -> Json:
        """Make an empty volume of `size_mb` MiB, and return it.

        Raises UsageError, Conflict if the name is taken, QuotaExceeded.
        """
        body = {"name": name, "size_mb": size_mb, "inodes": inodes}
        return await self._transport.json(Ask("POST", "/volumes", body=body, is_held=True))

    async def list(self) -> builtins.list[Json]:
        """Return the volumes, by name."""
        answer = await self._transport.json(Ask("GET", "/volumes"))
        found: builtins.list[Json] = answer["volumes"]
        return found

    async def get(self, name: str) -> Json:
        """Return one of them. Raises NotFound."""
        return await self._transport.json(Ask("GET", _path(name)))

    async def copy(self, source: str, name: str) -> Json:
        """Make a volume with the content of another, and return it.

        Raises NotFound, QuotaExceeded, and Conflict while a sandbox writes to the source.
        """
        ask = Ask("POST", f"{_path(source)}/copy", body={"name": name}, is_held=True)
        return await self._transport.json(ask)

    async def remove(self, name: str) -> None:
        """Remove a volume and all that is in it. Raises NotFound, Conflict if it is in use."""
        await self._transport.json(Ask("DELETE", _path(name)))


class Volumes:
    """The same for synchronous programs."""

    def __init__(self, thread: LoopThread[AsyncClient]) -> None:
        self._thread = thread

    def create(self, name: str, size_mb: int = 1024, inodes: int | None = None) -> Json:
        """Make an empty volume; see `AsyncVolumes.create`."""
        return self._thread.call(lambda client, _put: client.volumes.create(name, size_mb, inodes))

    def list(self) -> builtins.list[Json]:
        """Return the volumes, by name."""
        return self._thread.call(lambda client, _put: client.volumes.list())

    def get(self, name: str) -> Json:
        """Return one of them. Raises NotFound."""
        return self._thread.call(lambda client, _put: client.volumes.get(name))

    def copy(self, source: str, name: str) -> Json:
        """Make a volume with the content of another; see `AsyncVolumes.copy`."""
        return self._thread.call(lambda client, _put: client.volumes.copy(source, name))

    def remove(self, name: str) -> None:
        """Remove a volume and all that is in it; see `AsyncVolumes.remove`."""
        self._thread.call(lambda client, _put: client.volumes.remove(name))


def _path(name: str) -> str:
    return f"/volumes/{segment(name, 'volume', remedy='list volumes')}"
