"""The package broker as one sandbox reaches it: a host name that exists inside only.

What is asked there is answered by `egress.packages`, for which this gives the connection, the
policy of now, and a record of each answer. The broker is one for all sandboxes of the engine. The
invariant: one sandbox has a bounded number of requests there, so that its questions do not fill the
places of the others.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from cellwall.egress.proxy.meter import LimitReached
from cellwall.egress.proxy.sandbox_network import Destination, Open, Refused, SandboxNetwork
from cellwall.model.network import BROKER
from cellwall.model.packages import NO_PACKAGE

if TYPE_CHECKING:
    from cellwall.egress.packages.serving import Served

_PORT = 80
_LAST_S = 30.0
"""Seconds in which a program must have read the last of its answer."""
_HTTP_ERROR = 400


async def serve(network: SandboxNetwork, entry: Open, inner: socket.socket, port: int) -> None:
    """Answer what a program asks the broker. Raises `Refused`."""
    destination = Destination(BROKER, port, is_name=True)
    rule = network.rule_for(destination)
    if port != _PORT:
        raise Refused(f"the package broker has port {_PORT} only, and no TLS")
    network.check_meter()
    broker = network.broker()
    from cellwall.egress.packages import serving  # with it: 60 ms of imports

    network.note_open(entry, destination, "", rule)
    reader, writer = await _streams(inner)
    terms = serving.Terms(
        lambda: network.policy.packages or NO_PACKAGE,
        network.at_broker,
        lambda served: _note(network, served),
        entry.meter.count_sent,
        entry.meter.count_received,
    )
    try:
        await serving.serve(reader, writer, broker, terms)
    except LimitReached as error:
        network.note_refusal(BROKER, _PORT, "packages", str(error))
        raise
    try:
        async with asyncio.timeout(_LAST_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


async def _streams(inner: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return streams over the connection, which they close; the socket stays its owner's."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    own = socket.socket(fileno=os.dup(inner.fileno()))
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, own)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _note(network: SandboxNetwork, served: Served) -> None:
    """Record an answer: a refusal is one of the sandbox's, and a file a package."""
    target = served.request.target.partition("?")[0]
    if served.status >= _HTTP_ERROR:
        network.note_refusal(BROKER, _PORT, "packages", f"{served.reason:.300} ({target:.200})")
    elif served.is_whole and served.request.method == "GET" and _is_file(target):
        network.note_package(target.rpartition("/")[2][:200], served.sent_bytes)


def _is_file(target: str) -> bool:
    return target.endswith((".whl", ".tar.gz", ".zip", ".tgz"))
