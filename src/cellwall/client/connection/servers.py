"""Servers: the addresses of one server or of a cluster's gateways, and which is asked now.

`transport` sends, and says here what failed. The invariant: an address that failed is asked after
the others for a while, and then by one request first.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    import ssl

    from cellwall.client.connection.address import Address

AVOIDED_S = 30.0
"""Seconds for which an address that failed is asked after the others."""
_LIMITS = httpx.Limits(max_connections=512, max_keepalive_connections=64, keepalive_expiry=30.0)
# An answer is awaited for as long as a program runs; these options detect a server that is gone.
_ALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


@dataclass(slots=True, eq=False)
class Server:
    """One address, and the connections to it."""

    address: Address
    http: httpx.AsyncClient
    avoided_until_s: float = 0.0
    """Time of the loop until which others are asked first; 0: it has not failed."""


class Servers:
    """See the module. Lives on one event loop."""

    def __init__(self, address: Address, inner: httpx.AsyncBaseTransport | None) -> None:
        """Connect to nothing yet. `inner` replaces the connections."""
        addresses = (address, *address.others)
        # Loading the machine's certificates takes 100 ms; plain HTTP needs none.
        is_tls = any(each.url.startswith("https:") for each in addresses)
        verify = httpx.create_ssl_context() if is_tls and inner is None else False
        self.all = [Server(each, _client(each, inner, verify)) for each in addresses]

    def choose(self) -> Server:
        """Return the server to ask now."""
        if len(self.all) == 1:
            return self.all[0]
        now_s = asyncio.get_running_loop().time()
        for each in self.all:
            if each.avoided_until_s <= now_s:
                if each.avoided_until_s:
                    self.failed(each)  # until this one request has its answer
                return each
        return min(self.all, key=lambda each: each.avoided_until_s)

    def failed(self, server: Server) -> None:
        """Note that a connection to it could not be made, or broke."""
        server.avoided_until_s = asyncio.get_running_loop().time() + AVOIDED_S

    def answered(self, server: Server) -> None:
        """Note that it answers."""
        server.avoided_until_s = 0.0

    async def aclose(self) -> None:
        """Close all connections."""
        for each in self.all:
            await each.http.aclose()


def _client(
    address: Address, inner: httpx.AsyncBaseTransport | None, verify: ssl.SSLContext | bool
) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=address.url,
        headers={"X-API-Key": address.key, "User-Agent": "cellwall"},
        # An explicit transport also means: no proxy from the environment sees the key.
        transport=inner
        or httpx.AsyncHTTPTransport(
            verify=verify,
            limits=_LIMITS,
            uds=address.unix,
            socket_options=_ALIVE if address.unix is None else None,
        ),
    )
