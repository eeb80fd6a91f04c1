"""The connections to one node: those in use, and those that wait for their next request.

Used by `exchange`. The invariant: a connection of before the node was unreachable is not used
again, and none that waited for longer than the node keeps one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.gateway.wire.node_link import NodeLink

if TYPE_CHECKING:
    import ssl

_CONNECT_S = 2.0
"""Longest time for a connection and its handshake; a node is near."""
_IDLE_S = 20.0
"""A node keeps an idle connection for 75 s (`keep_alive_s`); what is in flight then is lost."""
_MOST_IDLE = 256


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Links:
    """See the module."""

    def __init__(
        self, address: Address, context: ssl.SSLContext | None, server_name: str | None = None
    ) -> None:
        """`context`: None for a node without TLS, which only tests have.

        `server_name`: what the node's certificate has to be for; None: its address.
        """
        self.address = address
        self._context = context
        self._server_name = server_name
        self._idle: deque[NodeLink] = deque()
        self._all: set[NodeLink] = set()

    async def take(self) -> NodeLink:
        """Return a connection for one request. Raises OSError if there can be none."""
        loop = asyncio.get_running_loop()
        while self._idle:
            link = self._idle.pop()
            if link.is_open and loop.time() - link.idle_since < _IDLE_S:
                return link
            link.abort()
        host, port = self.address
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, link = await loop.create_connection(
                    lambda: NodeLink(self._all.discard),
                    host,
                    port,
                    ssl=self._context,
                    server_hostname=self._server_name,
                )
        except TimeoutError:
            raise ConnectionError(f"no connection within {_CONNECT_S:g} s") from None
        self._all.add(link)
        return link

    def give_back(self, link: NodeLink) -> None:
        """Take a connection back after its request."""
        if not link.let_go():
            return
        self._idle.append(link)
        if len(self._idle) > _MOST_IDLE:
            self._idle.popleft().abort()

    def drop_idle(self) -> None:
        """Close what waits: the node was away."""
        while self._idle:
            self._idle.pop().abort()

    def cut(self) -> None:
        """End every connection at once: the node is lost, or the gateway ends."""
        self._idle.clear()
        for link in list(self._all):
            link.abort()
