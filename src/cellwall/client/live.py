"""Handle: one sandbox on the server, shared by the parts of the client's sandbox object.

It holds the sandbox's path and known state, and sends every request about it. The invariant: once
the server has reported the end, the sandbox stays ended here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING

from cellwall.model.errors import SandboxUnavailable
from cellwall.wire.reading import isolation_of, limits_of, seconds_of

if TYPE_CHECKING:
    from cellwall.client.connection.transport import Ask, Json, Transport


class RemoteSandboxHandle:
    """One sandbox."""

    def __init__(self, transport: Transport, facts: Json) -> None:
        """`facts` is the server's object of it."""
        self.transport = transport
        self.is_alive = True
        """Whether the sandbox had not ended at the server's last report."""
        self.take(facts)

    def take(self, facts: Json) -> None:
        """Update the state from the server's object."""
        self.id: str = facts["id"]
        self.facts = facts
        self.isolation = isolation_of(facts["isolation"])
        self.trust: str | None = facts.get("trust")
        self.limits = limits_of(facts["limits"])
        self.created_at = seconds_of(facts["created_at"])
        self.ends_at = seconds_of(facts["expires_at"])
        self.is_alive = self.is_alive and facts["status"] != "stopped"

    def path(self, below: str = "") -> str:
        """Return the path of an object of the sandbox."""
        return f"/sandboxes/{self.id}{below}"

    def ended(self) -> None:
        """Record that the sandbox has ended."""
        self.is_alive = False

    async def json(self, ask: Ask) -> Json:
        """Send a request about the sandbox; the path is relative to the sandbox's own."""
        try:
            return await self.transport.json(self._here(ask))
        except SandboxUnavailable:
            self.ended()
            raise

    async def pieces(self, ask: Ask) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an answer; closing the generator closes the connection."""
        try:
            async with contextlib.aclosing(self.transport.pieces(self._here(ask))) as pieces:
                async for data in pieces:
                    yield data
        except SandboxUnavailable:
            self.ended()
            raise

    def _here(self, ask: Ask) -> Ask:
        return replace(ask, path=self.path(ask.path))
