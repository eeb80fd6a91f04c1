"""One connection of a sandbox, from its acceptance to its end.

What a program dials directly and what it asks the HTTP proxy for meet here: a destination, and a
socket to the program. The destination is decided on, dialled, and what the program says first is
looked at, so that the name in it (SNI of TLS, `Host` of HTTP) is the one that was decided on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import NamedTuple

import h11

from cellwall.egress.proxy import hello, http_relay, package_door, pump
from cellwall.egress.proxy.destinations import FixedServer, ServerByRequest, authority
from cellwall.egress.proxy.http_relay import Side
from cellwall.egress.proxy.meter import LimitReached
from cellwall.egress.proxy.pump import PIECE
from cellwall.egress.proxy.relay import PlainStream, both_of, relay
from cellwall.egress.proxy.sandbox_network import (
    CONNECT_S,
    Destination,
    Open,
    Refused,
    SandboxNetwork,
    Unreachable,
)
from cellwall.egress.tls.opening import Opening
from cellwall.egress.tls.stream import TlsStream
from cellwall.model.network import BROKER
from cellwall.model.network_rule import WEB_PORTS

_FIRST_S = 15.0
"""Seconds in which a program must have said what it wants, once it has begun to."""
_TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"
_REFUSED_S = 1.0
"""Seconds for which we wait for a refused program's first bytes, to answer in its protocol."""


async def serve_direct(network: SandboxNetwork, inner: socket.socket) -> None:
    """Serve a connection that the program dialled itself."""
    with _closing(inner), contextlib.suppress(OSError, LimitReached, h11.RemoteProtocolError):
        address, port = inner.getsockname()[:2]
        destination = network.destination_of(address, port)
        try:
            with network.connection("direct") as entry:
                if destination.host == BROKER:
                    await package_door.serve(network, entry, inner, port)
                else:
                    await _serve(network, entry, inner, destination)
        except Refused as error:
            network.note_refusal(destination.host, port, "direct", str(error))
            await _tell(inner, f"refused: {error}", 403, error.said)
        except Unreachable as error:
            await _tell(inner, f"not reached: {error}", 502)


async def serve_proxy(network: SandboxNetwork, inner: socket.socket) -> None:
    """Serve a connection to the HTTP proxy."""
    with _closing(inner), contextlib.suppress(OSError, LimitReached, h11.RemoteProtocolError):
        try:
            with network.connection("proxy") as entry:
                await _serve_proxied(network, entry, inner)
        except Refused as error:
            network.note_refusal("the proxy", 0, "proxy", str(error))
            _reset(inner)


async def _serve_proxied(network: SandboxNetwork, entry: Open, inner: socket.socket) -> None:
    """Answer the first request: a tunnel (CONNECT), or requests with whole URLs."""
    client = Side(PlainStream(inner, entry.meter.count_sent), h11.SERVER)
    try:
        async with asyncio.timeout(_FIRST_S):
            request = await client.next_event()
    except h11.RemoteProtocolError as error:
        await http_relay.answer(client, 400, f"no request that can be passed on: {error}")
        return
    if not isinstance(request, h11.Request):
        return
    if request.method == b"CONNECT":
        await _serve_tunnel(network, entry, client, request)
        return
    async with ServerByRequest(network) as servers:
        await http_relay.serve(client, entry.meter, servers.route, request)


async def _serve_tunnel(
    network: SandboxNetwork, entry: Open, client: Side, request: h11.Request
) -> None:
    """Answer CONNECT, and relay what comes through the tunnel."""
    inner = client.stream.socket
    destination = authority(request.target.decode("ascii"), None)
    if destination is None:
        why = f"CONNECT to {request.target!r:.80} names no host and port"
        network.note_refusal("", 0, "proxy", why)
        await http_relay.answer(client, 403, f"refused: {why}")
        return
    try:
        outer = await network.connect(entry, destination)
    except Refused as error:
        network.note_refusal(destination.host, destination.port, "proxy", str(error))
        await http_relay.answer(client, 403, f"refused: {error}")
        return
    except Unreachable as error:
        await http_relay.answer(client, 502, f"not reached: {error}")
        return
    with _closing(outer):
        await asyncio.get_running_loop().sock_sendall(inner, _TUNNEL)
        try:
            await _relay_looked_at(network, entry, inner, outer, destination, client.rest())
        except Refused as error:
            network.note_refusal(destination.host, destination.port, "proxy", str(error))
            await _tell(inner, f"refused: {error}", 403, error.said)


async def _serve(
    network: SandboxNetwork, entry: Open, inner: socket.socket, destination: Destination
) -> None:
    """Decide on a destination, connect to it and relay. Raises `Refused`, `Unreachable`."""
    outer = await network.connect(entry, destination)
    with _closing(outer):
        await _relay_looked_at(network, entry, inner, outer, destination)


async def _relay_looked_at(
    network: SandboxNetwork,
    entry: Open,
    inner: socket.socket,
    outer: socket.socket,
    destination: Destination,
    early: bytes = b"",
) -> None:
    """Look at what comes first; relay it as TLS, as HTTP, or as it is.

    `early` are bytes of the program that were read already.
    """
    looks = network.decide(destination).looks_at_requests
    if not early and not await _program_speaks_first(inner, outer):
        _only_http(destination, looks=looks, what="a protocol whose server speaks first")
        await both_of(
            pump.run((outer, inner, entry.meter.note_received)),
            _pump_answers(network, entry, inner, outer, destination),
        )
        return
    async with asyncio.timeout(_FIRST_S):
        first = await _first_bytes(inner, destination, early)
    await entry.meter.count_sent(len(first.data) - len(early))
    network.check_named(entry, destination, first.server_name, first.data)
    if first.kind == "tls" and (opening := network.opening_for(destination)) is not None:
        opened = _Opened(network, entry, destination, opening)
        await opened.serve(inner, outer, first.data)
        return
    if first.kind == "tls":
        what = "TLS, whose requests cannot be seen"
        _only_http(destination, looks=looks, what=what, said=first.data)
    elif first.kind == "http":
        client = Side(PlainStream(inner, entry.meter.count_sent), h11.SERVER, first.data)
        server = PlainStream(outer, entry.meter.count_received)
        route = FixedServer(network, entry, server, destination, is_plain=True).route
        await http_relay.serve(client, entry.meter, route)
        return
    elif destination.port in WEB_PORTS or looks:
        raise Refused(f"what was sent to {destination} is neither HTTP/1 nor TLS", first.data)
    await asyncio.get_running_loop().sock_sendall(outer, first.data)
    if first.is_end:
        outer.shutdown(socket.SHUT_WR)
        await pump.run((outer, inner, entry.meter.note_received))
    else:
        await relay(inner, outer, entry.meter)


class _Opened:
    """TLS that is opened: the proxy is the server to the program, and the client to the server."""

    def __init__(
        self, network: SandboxNetwork, entry: Open, destination: Destination, opening: Opening
    ) -> None:
        self._network = network
        self._entry = entry
        self._destination = destination
        self._opening = opening

    async def serve(self, inner: socket.socket, outer: socket.socket, first: bytes) -> None:
        """Serve the requests of a program; `first` is its first message, which was counted."""
        host, port, meter = self._destination.host, self._destination.port, self._entry.meter
        ours = TlsStream(inner, meter.count_sent, self._opening.program_end(host), first)
        theirs = TlsStream(outer, meter.count_received, self._opening.server_end(host, port))
        verifying = asyncio.ensure_future(self._verified(theirs))
        try:
            if not await self._is_trusted(ours):
                return
            problem = await verifying
            await self._serve(ours, theirs, problem)
            if not problem:
                self._opening.keep_session(host, port, theirs.session)
            await ours.end()
        finally:
            verifying.cancel()
            await asyncio.gather(verifying, return_exceptions=True)

    async def _serve(self, ours: TlsStream, theirs: TlsStream, problem: str) -> None:
        client = Side(ours, h11.SERVER)
        if problem:
            self._note(problem)
            async with asyncio.timeout(_FIRST_S):
                await client.next_event()
            await http_relay.answer(client, 502, f"not reached: {problem}")
            return
        server = FixedServer(self._network, self._entry, theirs, self._destination, is_plain=False)
        await http_relay.serve(client, self._entry.meter, server.route)

    async def _is_trusted(self, ours: TlsStream) -> bool:
        """Agree on keys with the program; whether it took the sandbox's certificate."""
        try:
            async with asyncio.timeout(_FIRST_S):
                await ours.handshake()
        except ssl.SSLError as error:
            why = error.reason or "it ended the connection"
            self._note(f"the program did not take the certificate of the sandbox's proxy: {why}")
            return False
        return True

    async def _verified(self, theirs: TlsStream) -> str:
        """Agree on keys with the server; return what is wrong with it, or nothing."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await theirs.handshake()
        except ssl.SSLCertVerificationError as error:
            return f"{self._destination}: its certificate is wrong: {error.verify_message}"
        except TimeoutError:
            return f"{self._destination}: its TLS did not answer in time"
        except OSError as error:  # ssl.SSLError is one
            return f"{self._destination}: its TLS failed: {error.strerror or error}"
        return ""

    def _note(self, why: str) -> None:
        self._network.note_refusal(self._destination.host, self._destination.port, "tls", why)


async def _pump_answers(
    network: SandboxNetwork,
    entry: Open,
    inner: socket.socket,
    outer: socket.socket,
    destination: Destination,
) -> None:
    """Move what a program says to a server that spoke first, which is a protocol of its own.

    TLS with another server's name and requests of HTTP are no such protocol. Raises `Refused`.
    """
    first = await _first_bytes(inner, destination, b"")
    network.check_named(entry, destination, first.server_name, first.data)
    if first.kind == "http":
        raise Refused(f"HTTP to {destination}, after the server had spoken", first.data)
    await entry.meter.count_sent(len(first.data))
    await asyncio.get_running_loop().sock_sendall(outer, first.data)
    if first.is_end:
        outer.shutdown(socket.SHUT_WR)
    else:
        await pump.run((inner, outer, entry.meter.note_sent))


def _only_http(destination: Destination, *, looks: bool, what: str, said: bytes = b"") -> None:
    if looks:
        why = f"the rule for {destination} allows single HTTP requests, and this is {what}"
        raise Refused(why, said)


async def _program_speaks_first(inner: socket.socket, outer: socket.socket) -> bool:
    """Wait until either side has said something; whether it is the program."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[None] = loop.create_future()
    spoke: set[int] = set()

    def tell(side: int) -> None:
        spoke.add(side)
        if not heard.done():
            heard.set_result(None)

    numbers = [each.fileno() for each in (inner, outer)]  # asyncio would describe a socket first
    for number in numbers:
        loop.add_reader(number, tell, number)
    try:
        await heard
        return numbers[0] in spoke
    finally:
        for number in numbers:
            loop.remove_reader(number)


class _First(NamedTuple):
    kind: str
    """`tls`, `http` or `other`."""
    data: bytes
    is_end: bool = False
    """Whether the program has ended its side."""
    server_name: str | None = None
    """Server name of TLS, if it has one."""


async def _first_bytes(inner: socket.socket, destination: Destination, early: bytes) -> _First:
    """Read until it is clear what it is. Raises `Refused` for a name that does not agree."""
    loop = asyncio.get_running_loop()
    data = early or await loop.sock_recv(inner, PIECE)
    if data[:1] == bytes([hello.HANDSHAKE]):
        data, server_name = await _checked_hello(inner, data, destination)
        return _First("tls", data, server_name=server_name)
    while True:
        if http_relay.REQUEST_LINE.match(data):
            return _First("http", data.lstrip())
        if data.lstrip().startswith(http_relay.HTTP_2):
            raise Refused(f"HTTP/2 to {destination}: without TLS only HTTP/1 is passed on", data)
        if not _may_be_http(data):
            return _First("other", data, not data)
        more = await loop.sock_recv(inner, PIECE)
        if not more:
            return _First("other", data, is_end=True)
        data += more


def _may_be_http(data: bytes) -> bool:
    """Whether the first line of a request may still be on its way."""
    line = data.lstrip()
    word = line.partition(b" ")[0]
    return (
        len(data) < http_relay.MOST_HEAD_BYTES
        and b"\n" not in line
        and len(word) <= 32
        and (word.isalpha() or not word)
        and bool(data)
    )


async def _checked_hello(
    inner: socket.socket, data: bytes, destination: Destination
) -> tuple[bytes, str | None]:
    """Read the first TLS message whole and check its server name. Raises `Refused`.

    Returns what was read, and the server name.
    """
    reader = hello.Hello()
    loop = asyncio.get_running_loop()
    try:
        is_whole = reader.feed(data)
        while not is_whole:
            more = await loop.sock_recv(inner, PIECE)
            if not more:
                raise hello.NotTls("it ended within its first message")
            data += more
            is_whole = reader.feed(more)
    except hello.NotTls as error:
        raise Refused(f"TLS to {destination}: {error}", data) from None
    if destination.is_name and reader.name not in (None, destination.host):
        raise Refused(
            f"TLS to {destination}: the connection names another server, {reader.name!r:.80}", data
        )
    return data, reader.name


# -- ends ----------------------------------------------------------------------------------


async def _tell(inner: socket.socket, sentence: str, status: int, said: bytes = b"") -> None:
    """Tell a refused program why, in its own protocol; a reset where there is none.

    `said` are its first bytes, if they were read already.
    """
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError, h11.RemoteProtocolError, LimitReached):
        async with asyncio.timeout(_REFUSED_S):
            data = said or await loop.sock_recv(inner, PIECE)
            if data[:1] == bytes([hello.HANDSHAKE]):
                await loop.sock_sendall(inner, hello.ACCESS_DENIED)
                return
            if http_relay.REQUEST_LINE.match(data):
                client = Side(PlainStream(inner, _uncounted), h11.SERVER, data.lstrip())
                await client.next_event()
                await http_relay.answer(client, status, sentence)
                return
    _reset(inner)


async def _uncounted(_size: int) -> None:
    """Count nothing: what a refused program sends goes nowhere."""


def _reset(inner: socket.socket) -> None:
    """Have the kernel answer the program with a reset instead of an orderly end."""
    inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def _closing(held: socket.socket) -> Iterator[None]:
    try:
        yield
    finally:
        held.close()
