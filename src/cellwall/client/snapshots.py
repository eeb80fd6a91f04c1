"""Snapshots of a server: listed and deleted, of the caller's own tenant.

Made by the clients. `sandbox.snapshot()` makes one, `client.restore(…)` a sandbox of it.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from cellwall.client.connection.transport import Ask, Transport, segment
from cellwall.wire.reading import snapshot_of

if TYPE_CHECKING:
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.model.snapshot import Snapshot
    from cellwall.surface.sync.loop_thread import LoopThread


class AsyncSnapshots:
    """The snapshots of one tenant."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[Snapshot]:
        """Return the snapshots, the oldest first."""
        answer = await self._transport.json(Ask("GET", "/snapshots"))
        return [snapshot_of(each) for each in answer["snapshots"]]

    async def get(self, wanted: str) -> Snapshot:
        """Return one of them, by its id or its name. Raises NotFound."""
        return snapshot_of(await self._transport.json(Ask("GET", _path(wanted))))

    async def delete(self, wanted: str) -> None:
        """Delete one; sandboxes that were made of it live on. Raises NotFound."""
        await self._transport.json(Ask("DELETE", _path(wanted)))


class Snapshots:
    """The same for synchronous programs."""

    def __init__(self, thread: LoopThread[AsyncClient]) -> None:
        self._thread = thread

    def list(self) -> builtins.list[Snapshot]:
        """Return the snapshots, the oldest first."""
        return self._thread.call(lambda client, _put: client.snapshots.list())

    def get(self, wanted: str) -> Snapshot:
        """Return one of them, by its id or its name. Raises NotFound."""
        return self._thread.call(lambda client, _put: client.snapshots.get(wanted))

    def delete(self, wanted: str) -> None:
        """Delete one; sandboxes that were made of it live on. Raises NotFound."""
        self._thread.call(lambda client, _put: client.snapshots.delete(wanted))


def _path(wanted: str) -> str:
    return f"/snapshots/{segment(wanted, 'snapshot', remedy='list snapshots')}"
