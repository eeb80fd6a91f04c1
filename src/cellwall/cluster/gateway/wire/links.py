"""The connections to one node: those in use, and those that wait for their next request.

Used by `exchange`. The invariant: a connection of before the node was unreachable is not used
again, and none that waited for longer than the node keeps one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.gateway.wire.node_link import NodeLink
from cellwall.cluster.gateway.wire.tls import Tls

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
        idle = self.idle()
        if idle is not None:
            return idle
        try:
            async with asyncio.timeout(_CONNECT_S):
                link = await self._connected(asyncio.get_running_loop())
        except TimeoutError:
            raise ConnectionError(f"no connection within {_CONNECT_S:g} s") from None
        self._all.add(link)
        return link

    def idle(self) -> NodeLink | None:
        """Return a connection that waits for its next request; None: there is none."""
        if not self._idle:
            return None
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            link = self._idle.pop()
            if link.is_open and now_s - link.idle_since < _IDLE_S:
                return link
            link.abort()
        return None

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> NodeLink:
        """Return a new connection, whose node has shown its certificate. Raises OSError."""
        link, context, (host, port) = NodeLink(self._all.discard), self._context, self.address
        if context is None:
            await loop.create_connection(lambda: link, host, port)
            return link
        name = self._server_name or host
        transport, tls = await loop.create_connection(lambda: Tls(link, context, name), host, port)
        try:
            await tls.opened
        except BaseException:  # the time is over, or the client has left
            transport.abort()
            raise
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
