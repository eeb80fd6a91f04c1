"""`cellwall gateway`: the process in front of the nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import uvloop

import cellwall
from cellwall.apps.cluster.doors import opened_doors
from cellwall.apps.cluster.finding import follower
from cellwall.apps.cluster.front import front
from cellwall.apps.exposure import check_exposure, check_tls
from cellwall.apps.heap import spare_the_collector
from cellwall.apps.listeners import (
    address_of,
    listening_for_doors,
    listening_on,
    raise_descriptor_limit,
    tcp_address_of,
)
from cellwall.cluster.gateway.book import Book, Node
from cellwall.cluster.gateway.data.data import Data
from cellwall.cluster.gateway.data.places import OwnPlaces
from cellwall.cluster.gateway.gateway import Gateway
from cellwall.model.errors import UsageError
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.cluster.gateway.settings import GatewaySettings
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.core.settings import ServerSettings


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
    gateway = Gateway(server, keys, book, opened_doors(server), settings.gateways)
    gateway.data = Data(gateway, OwnPlaces())
    async with contextlib.AsyncExitStack() as stack:
        sock = stack.enter_context(listening_on(server))
        door_socks = stack.enter_context(listening_for_doors(server))
        await stack.enter_async_context(_audited(gateway, settings.audit, server))
        await stack.enter_async_context(_metrics(gateway, server))
        gateway.tasks.spawn(gateway.watch_paces())
        gateway.tasks.spawn(follower(settings, told.read, book, gateway.tasks, _cut))
        async with _agreeing(settings, server, gateway, over):
            if over.is_set():  # before it knew what is lost
                return
            async with front(server, gateway.clients) as listen:
                await listen(sock, gateway.begin)
                for name, each in door_socks.items():
                    await listen(each, partial(gateway.begin_at, name))
                spare_the_collector()
                told.on_ready(address_of(server, sock))
                for name, each in door_socks.items():
                    told.on_door(name, tcp_address_of(server, each))
                await over.wait()
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


@contextlib.asynccontextmanager
async def _audited(gateway: Gateway, url: str, server: ServerSettings) -> AsyncIterator[None]:
    """Keep an audit while the block runs, if there is a store for it."""
    if not url:
        yield
        return
    # SQL and more, for those that want it.
    from cellwall.apps.store_place import open_store
    from cellwall.cluster.gateway.work.trail import Trail
    from cellwall.server.audit.writer import Audit
    from cellwall.server.observability.observer import Observer
    from cellwall.server.observability.redaction import Redactor

    store = await open_store(url, sole=True, has_journal=False)
    try:
        audit = Audit(store, server, Observer(replace(server, metrics_port=None), Redactor()))
        await audit.open({"version": cellwall.__version__, "pid": os.getpid()})
        gateway.trail = Trail(audit, store)
        try:
            yield
        finally:
            await audit.aclose()
    finally:
        await store.aclose()


@contextlib.asynccontextmanager
async def _metrics(gateway: Gateway, server: ServerSettings) -> AsyncIterator[None]:
    """Keep metrics and answer scrapes while the block runs, if the settings enable it."""
    if server.metrics_port is None:
        yield
        return
    # Some MiB, for those that want them.
    from cellwall.apps.metrics_listener import check_metrics_exposure, listening
    from cellwall.cluster.gateway.work.tally import Tally

    check_metrics_exposure(server)
    gateway.tally = Tally(gateway.book, gateway.turns)
    async with listening(server, gateway.tally, Tasks()):
        yield


def _cut(node: Node) -> None:
    """End the connections to a node that is lost: what is held on them has its end."""
    node.links.cut()
