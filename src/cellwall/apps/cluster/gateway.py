"""`cellwall gateway`: the process in front of the nodes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from cellwall.apps.cluster.doors import opened_doors
from cellwall.apps.cluster.finding import follower
from cellwall.apps.exposure import check_exposure, check_tls
from cellwall.apps.listeners import (
    address_of,
    listening_for_doors,
    listening_on,
    raise_descriptor_limit,
    tcp_address_of,
)
from cellwall.cluster.gateway.book import Book, Node
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.wire.front import Begin, ClientLink
from cellwall.model.errors import UsageError
from cellwall.server.http.addresses import Addresses

if TYPE_CHECKING:
    from cellwall.cluster.gateway.settings import GatewaySettings
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.core.settings import ServerSettings

_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Told:
    """What the command that runs a gateway is told, and asked."""

    on_ready: Callable[[str], None]
    """Gets the address, once it listens."""
    on_door: Callable[[str, str], None]
    """Gets the name and the address of each door with a port of its own."""
    read: Callable[[], GatewaySettings]
    """Returns the settings anew, for SIGHUP."""


def run(
    settings: GatewaySettings,
    server: ServerSettings,
    keys: KeyRing,
    told: Told,
) -> None:
    """Pass requests to the nodes until a signal ends the gateway."""
    check_exposure(server, has_own_keys=bool(keys.fixed))
    check_tls(server)
    if not keys.fixed:
        raise UsageError(
            "gateway: there is no key for it",
            remedy="set CELLWALL_API_KEY, or give [[keys]] in the configuration",
        )
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, server, keys, told))


async def _serve(
    settings: GatewaySettings,
    server: ServerSettings,
    keys: KeyRing,
    told: Told,
) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    book = Book(settings.lost_after_s)
    gateway = Gateway(server, keys, book, opened_doors(server))
    with listening_on(server) as sock, listening_for_doors(server) as door_socks:
        gateway.tasks.spawn(follower(settings, told.read, book, gateway.tasks, _cut))
        async with _agreeing(settings, server, gateway, over):
            if over.is_set():  # before it knew what is lost
                return
            async with _front(server) as listen:
                await listen(sock, gateway.begin)
                for name, each in door_socks.items():
                    await listen(each, partial(gateway.begin_at, name))
                told.on_ready(address_of(server, sock))
                for name, each in door_socks.items():
                    told.on_door(name, tcp_address_of(server, each))
                await over.wait()
            await gateway.tasks.cancel()
        for node in book.nodes:
            node.links.cut()


Listen = Callable[[socket.socket, Begin], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def _front(server: ServerSettings) -> AsyncIterator[Listen]:
    """Yield what accepts clients on a socket; at the end of the block they are let go."""
    ClientLink.header_s, ClientLink.keep_alive_s = server.header_s, server.keep_alive_s
    ClientLink.most = server.most_connections
    ClientLink.addresses = Addresses(server.most_connections_per_address, server.proxy_networks)
    loop, living, tls = asyncio.get_running_loop(), set[ClientLink](), _tls(server)
    listeners: list[asyncio.Server] = []

    async def listen(sock: socket.socket, begin: Begin) -> None:
        listeners.append(
            await loop.create_server(
                lambda: ClientLink(begin, living), sock=sock, backlog=_BACKLOG, ssl=tls
            )
        )

    yield listen
    for each in listeners:
        each.close()
    await _let_end(living, server.stop_s)


def _agreeing(
    settings: GatewaySettings, server: ServerSettings, gateway: Gateway, over: asyncio.Event
) -> contextlib.AbstractAsyncContextManager[None]:
    """Agree with the other gateways for the length of a block, if there is a directory."""
    if not settings.directory:
        return contextlib.nullcontext()
    from cellwall.apps.cluster.directory import agreeing  # a gateway alone has no memory for it

    return agreeing(settings, server, gateway, over)


async def _let_end(living: set[ClientLink], seconds: float) -> None:
    """Let requests under way end for so long; idle connections are closed at once."""
    ends = [client.ended for client in living]
    for client in list(living):
        client.end_when_idle()
    if ends:
        await asyncio.wait(ends, timeout=seconds)
    for client in list(living):
        client.abort()


def _cut(node: Node) -> None:
    """End the connections to a node that is lost: what is held on them has its end."""
    node.links.cut()


def _tls(server: ServerSettings) -> ssl.SSLContext | None:
    if server.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.tls_cert, server.tls_key)
    return context
