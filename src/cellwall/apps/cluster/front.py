"""The clients of a gateway: accepted at its sockets, bounded in number, and let go at its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from cellwall.cluster.gateway.wire.front import Begin, ClientLink
from cellwall.server.http.addresses import Addresses

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings

_BACKLOG = 2048

Listen = Callable[[socket.socket, Begin], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def front(server: ServerSettings, living: set[ClientLink]) -> AsyncIterator[Listen]:
    """Yield what accepts clients on a socket; at the end of the block they are let go.

    `living` has their connections meanwhile.
    """
    ClientLink.header_s, ClientLink.keep_alive_s = server.header_s, server.keep_alive_s
    ClientLink.most = server.most_connections
    ClientLink.addresses = Addresses(server.most_connections_per_address, server.proxy_networks)
    loop, tls = asyncio.get_running_loop(), _tls(server)
    listeners: list[asyncio.Server] = []

    async def listen(sock: socket.socket, begin: Begin) -> None:
        listeners.append(
            await loop.create_server(
                lambda: ClientLink(begin, living),
                sock=sock,
                backlog=_BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else server.header_s,
            )
        )

    yield listen
    for each in listeners:
        each.close()
    await _let_end(living, server.stop_s)


async def _let_end(living: set[ClientLink], seconds: float) -> None:
    """Let requests under way end for so long; idle connections are closed at once."""
    ends = [client.ended for client in living]
    for client in list(living):
        client.end_when_idle()
    if ends:
        await asyncio.wait(ends, timeout=seconds)
    for client in list(living):
        client.abort()


def _tls(server: ServerSettings) -> ssl.SSLContext | None:
    if server.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.tls_cert, server.tls_key)
    return context
