"""`cellwall gateway`: the process in front of the nodes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from cellwall.apps.exposure import check_exposure, check_tls
from cellwall.apps.listeners import address_of, listening_on, raise_descriptor_limit
from cellwall.cluster.certificates import Files, gateway_context
from cellwall.cluster.gateway.book import Book, Node
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.cluster.gateway.probing import watch
from cellwall.cluster.gateway.wire.front import ClientLink
from cellwall.cluster.gateway.wire.links import Address, Links
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
        runner.run(_serve(settings, server, keys, on_ready))


async def _serve(
    settings: GatewaySettings,
    server: ServerSettings,
    keys: KeyRing,
    on_ready: Callable[[str], None],
) -> None:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    book = _book(settings)
    gateway = Gateway(server, keys, book)
    living: set[ClientLink] = set()
    ClientLink.header_s, ClientLink.keep_alive_s = server.header_s, server.keep_alive_s
    ClientLink.most = server.most_connections
    ClientLink.addresses = Addresses(server.most_connections_per_address, server.proxy_networks)
    with listening_on(server) as sock:
        for node in book.nodes:
            gateway.tasks.spawn(watch(book, node, settings.probe_s, _cut))
        async with _agreeing(settings, server, gateway, over):
            if over.is_set():  # before it knew what is lost
                return
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


def _book(settings: GatewaySettings) -> Book:
    files = Files(Path(settings.certificate), Path(settings.key))
    context = gateway_context(Path(settings.authority), files)
    nodes = [Node(Links(_address(each), context)) for each in settings.nodes]
    return Book(settings.lost_after_s, nodes)


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise UsageError(
            f"gateway: nodes has {text[:60]!r}, which is no address",
            remedy='give HOST:PORT, as "10.0.0.5:7443"',
        )
    return Address(host.strip("[]"), int(port))


def _cut(node: Node) -> None:
    """End the connections to a node that is lost: what is held on them has its end."""
    node.links.cut()


def _tls(server: ServerSettings) -> ssl.SSLContext | None:
    if server.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.tls_cert, server.tls_key)
    return context
