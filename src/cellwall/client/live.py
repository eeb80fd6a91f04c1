"""A sandbox on the server as the parts of our sandbox object see it.

Its address, what is known of it, and every request about it. The invariant: once the server said
that it has ended, it stays so here.
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


class Live:
    """One sandbox."""

    def __init__(self, transport: Transport, facts: Json) -> None:
        """`facts` is the server's object of it."""
        self.transport = transport
        self.is_alive = True
        """Whether it had not ended when the server last said something of it."""
        self.take(facts)

    def take(self, facts: Json) -> None:
        """Learn what the server says of it now."""
        self.id: str = facts["id"]
        self.facts = facts
        self.isolation = isolation_of(facts["isolation"])
        self.trust: str | None = facts.get("trust")
        self.limits = limits_of(facts["limits"])
        self.created_at = seconds_of(facts["created_at"])
        self.ends_at = seconds_of(facts["expires_at"])
        self.is_alive = self.is_alive and facts["status"] == "running"

    def path(self, below: str = "") -> str:
        """Return the path of something of it."""
        return f"/sandboxes/{self.id}{below}"

    def ended(self) -> None:
        """Note that it has ended."""
        self.is_alive = False

    async def json(self, ask: Ask) -> Json:
        """Ask about it; the path is below its own."""
        try:
            return await self.transport.json(self._here(ask))
        except SandboxUnavailable:
            self.ended()
            raise

    async def pieces(self, ask: Ask) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an answer; closed early, it closes the connection."""
        try:
            async with contextlib.aclosing(self.transport.pieces(self._here(ask))) as pieces:
                async for data in pieces:
                    yield data
        except SandboxUnavailable:
            self.ended()
            raise

    def _here(self, ask: Ask) -> Ask:
        return replace(ask, path=self.path(ask.path))
