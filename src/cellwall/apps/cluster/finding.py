"""How a gateway finds its nodes and knows them again, as its settings say."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.cluster.certificates import ANY_ADDRESS, Files, gateway_context
from cellwall.cluster.gateway.book import Node
from cellwall.cluster.gateway.probing import watch
from cellwall.cluster.gateway.roster import Roster
from cellwall.cluster.gateway.wire.links import Links
from cellwall.cluster.providers.static import Static
from cellwall.model.errors import HostUnsupported

if TYPE_CHECKING:
    from cellwall.cluster.gateway.book import Book
    from cellwall.cluster.gateway.settings import GatewaySettings
    from cellwall.cluster.gateway.wire.links import Address
    from cellwall.cluster.providers.base import Provider
    from cellwall.surface.shared.tasks import Tasks

_log = logging.getLogger("cellwall.gateway")


def follower(
    settings: GatewaySettings,
    read: Callable[[], GatewaySettings],
    book: Book,
    tasks: Tasks,
    on_lost: Callable[[Node], None],
) -> Coroutine[object, object, None]:
    """Return what keeps the nodes of a book those that there are, and probes them.

    `read` returns the settings anew. Raises UsageError on certificates and addresses, and
    HostUnsupported without the provider's packages.
    """
    roster = Roster(
        book,
        tasks,
        _maker_of(settings),
        lambda node: watch(book, node, settings.probe_s, on_lost),
    )
    return _provider_of(settings, read).follow(roster.take)


def _maker_of(settings: GatewaySettings) -> Callable[[Address], Node]:
    """Return what makes a node of its address.

    SECURITY: a node that is listed has to have a certificate for the address that is dialled; one
    that is found, whose address no certificate can have, one for the name of such nodes.
    """
    files = Files(Path(settings.certificate), Path(settings.key))
    context = gateway_context(Path(settings.authority), files)
    server_name = None if settings.provider == "static" else ANY_ADDRESS
    return lambda address: Node(Links(address, context, server_name))


def _provider_of(settings: GatewaySettings, read: Callable[[], GatewaySettings]) -> Provider:
    """Return what finds the nodes."""
    asked = asyncio.Event()
    # Also where it changes nothing: a signal without a handler would end the gateway.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
    if settings.provider == "static":
        return Static(settings.nodes, lambda: _nodes_of(settings, read()), asked)
    if find_spec("lightkube") is None:
        raise HostUnsupported(
            "kubernetes",
            "gateway: not installed: lightkube",
            remedy="run: pip install 'cellwall[kubernetes]'",
        )
    from cellwall.cluster.providers.kubernetes import Kubernetes

    return Kubernetes(settings.service, settings.namespace)


def _nodes_of(before: GatewaySettings, now: GatewaySettings) -> tuple[str, ...]:
    """Return the nodes of settings that were read again; everything else waits for a restart."""
    if replace(now, nodes=before.nodes) != before:
        _log.warning("[gateway] has changed in more than nodes: the rest holds from the next start")
    return now.nodes
