"""`cellwall gateway`: the process in front of the nodes."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvloop

from cellwall.apps.cluster.finding import follower
from cellwall.apps.exposure import check_exposure, check_tls
from cellwall.apps.listeners import address_of, listening_on, raise_descriptor_limit
from cellwall.cluster.gateway.book import Book, Node
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.wire.front import ClientLink
from cellwall.model.errors import UsageError
from cellwall.server.http.addresses import Addresses

if TYPE_CHECKING:
    from cellwall.cluster.gateway.settings import GatewaySettings
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.core.settings import ServerSettings

_BACKLOG = 2048


def run(
    settings: GatewaySettings,
    server: ServerSettings,
    keys: KeyRing,
    on_ready: Callable[[str], None],
    read: Callable[[], GatewaySettings],
) -> None:
    """Pass requests to the nodes until a signal ends the gateway.

    `read` returns its settings anew, for SIGHUP.
    """
    check_exposure(server, has_own_keys=bool(keys.fixed))
    check_tls(server)
    if not keys.fixed:
        raise UsageError(
            "gateway: there is no key for it",
            remedy="set CELLWALL_API_KEY, or give [[keys]] in the configuration",
        )
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, server, keys, on_ready, read))


async def _serve(
    settings: GatewaySettings,
    server: ServerSettings,
    keys: KeyRing,
    on_ready: Callable[[str], None],
    read: Callable[[], GatewaySettings],
) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    book = Book(settings.lost_after_s)
    gateway = Gateway(server, keys, book)
    living: set[ClientLink] = set()
    ClientLink.header_s, ClientLink.keep_alive_s = server.header_s, server.keep_alive_s
    ClientLink.most = server.most_connections
    ClientLink.addresses = Addresses(server.most_connections_per_address, server.proxy_networks)
    with listening_on(server) as sock:
        gateway.tasks.spawn(follower(settings, read, book, gateway.tasks, _cut))
        listener = await loop.create_server(
            lambda: ClientLink(gateway.begin, living),
            sock=sock,
            backlog=_BACKLOG,
            ssl=_tls(server),
        )
        on_ready(address_of(server, sock))
        await over.wait()
        listener.close()
        await _let_end(living, server.stop_s)
        await gateway.tasks.cancel()
        for node in book.nodes:
            node.links.cut()


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
