"""Destinations of HTTP requests: which server a request names, and whether it may go there.

Two kinds of connections carry requests: one whose server is fixed, because the program dialled it,
and one to the HTTP proxy, whose every request names its server. In both the authority in the
request, its `Host` header and the destination that was decided on must be one.
"""

from __future__ import annotations

import contextlib
from ipaddress import ip_address
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import h11

from cellwall.egress.proxy.http_relay import Side, Way
from cellwall.egress.proxy.relay import PlainStream, Stream
from cellwall.egress.proxy.sandbox_network import Destination, Open, Refused, SandboxNetwork

_MOST_REQUESTS_KEPT = 20
"""Most requests of one connection that are named in its record."""
_LONGEST_NAME = 253
"""Most characters of a host name, RFC 1035."""
_HTTP = 80


def authority(text: str, default_port: int | None) -> Destination | None:
    """Return the destination that `host:port` means; None if it means none, or an odd one."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        return None
    if (
        not host
        or len(host) > _LONGEST_NAME + 1
        or port is None
        or parts.path
        or parts.query
        or parts.fragment
        or "@" in text
    ):
        return None
    host = host.lower().removesuffix(".")
    try:
        return Destination(str(ip_address(host)), port, is_name=False)
    except ValueError:
        last = host.rpartition(".")[2]
        if last.isdecimal() or last.startswith("0x") or not host.isascii() or ":" in host:
            return None  # an odd spelling of an address, which a resolver might understand
        return Destination(host, port, is_name=True)


def _host_header(request: h11.Request) -> str:
    """Return the value of the one Host header; h11 has refused two, and none in HTTP/1.1."""
    return next((v.decode("latin-1") for n, v in request.headers if n == b"host"), "")


def _decide(network: SandboxNetwork, destination: Destination, request: h11.Request) -> str:
    """Decide on a request; return its line for the record. Raises `Refused`."""
    method, target = request.method.decode("ascii"), request.target.decode("ascii")
    path = target if target.startswith("/") else urlsplit(target).path or "/"
    network.check_request(destination, method, path)
    return f"{method:.32} {path.partition('?')[0]:.200}"


def _note(entry: Open, line: str) -> None:
    if len(entry.requests) < _MOST_REQUESTS_KEPT:
        entry.requests.append(line)


class FixedServer:
    """Requests on a connection that the program dialled itself."""

    def __init__(
        self,
        network: SandboxNetwork,
        entry: Open,
        outer: Stream,
        destination: Destination,
        *,
        is_plain: bool,
    ) -> None:
        """`outer` is connected to `destination`, which is decided on; its owner closes it.

        `is_plain`: whether requests travel without TLS.
        """
        self._network = network
        self._entry = entry
        self._destination = destination
        self._side = Side(outer, h11.CLIENT)
        entry.secrets = network.substitution(destination, is_plain=is_plain)

    async def route(self, request: h11.Request) -> Way:
        """Return the way of one request. Raises `Refused`."""
        try:
            line = self._checked(request)
        except Refused as error:
            ours = self._destination
            self._network.note_refusal(ours.host, ours.port, "request", str(error))
            raise
        _note(self._entry, line)
        host = _host_header(request).encode("latin-1")
        fields = self._network.fields_for(self._destination)
        return Way(self._side, request.target, host, self._entry.secrets, fields)

    def _checked(self, request: h11.Request) -> str:
        ours, host = self._destination, _host_header(request)
        named = authority(host, ours.port)
        if named is None or (ours.is_name and named.host != ours.host):
            raise Refused(
                f"a request to {ours} names another server in its Host header: {host!r:.80}"
            )
        if named.is_name:
            self._network.check_named(self._entry, ours, named.host)
        if not request.target.startswith((b"/", b"*")) or request.method == b"CONNECT":
            raise Refused(f"a request to {ours} is one for a proxy: {request.target!r:.80}")
        return _decide(self._network, ours, request)


class ServerByRequest:
    """Requests to the HTTP proxy with whole URLs; an async context manager."""

    def __init__(self, network: SandboxNetwork) -> None:
        """Begin without a connection."""
        self._network = network
        self._held = contextlib.ExitStack()
        self._now: tuple[Destination, Side, Open] | None = None
        """Destination of the last request, and the connection to it."""

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection to the last server."""
        self._held.close()

    async def route(self, request: h11.Request) -> Way:
        """Return the way of one request, to the server it names. Raises `Refused` and others."""
        try:
            destination, path = _absolute(request)
            line = _decide(self._network, destination, request)
            if self._now is None or destination != self._now[0]:
                self._now = None
                self._now = (destination, *await self._connect(destination))
        except Refused as error:
            self._network.note_refusal(*_named(request), "proxy", str(error))
            raise
        _, side, entry = self._now
        _note(entry, line)
        host = _host_header(request).encode("latin-1")
        fields = self._network.fields_for(destination)
        return Way(side, path.encode("ascii"), host, entry.secrets, fields)

    async def _connect(self, destination: Destination) -> tuple[Side, Open]:
        self._held.close()
        entry = self._held.enter_context(self._network.connection("proxy"))
        outer = self._held.enter_context(await self._network.connect(entry, destination))
        entry.secrets = self._network.substitution(destination, is_plain=True)
        return Side(PlainStream(outer, entry.meter.count_received), h11.CLIENT), entry


def _absolute(request: h11.Request) -> tuple[Destination, str]:
    """Return the destination and path of a request with a whole URL. Raises `Refused`."""
    target = request.target.decode("ascii")
    try:
        parts = urlsplit(target)
    except ValueError:
        raise Refused(f"the URL {target!r:.80} cannot be read") from None
    if parts.scheme.lower() != "http":
        raise Refused(f"the proxy takes http:// URLs and CONNECT, and this is {target!r:.80}")
    destination = authority(parts.netloc, _HTTP)
    host = authority(_host_header(request), _HTTP)
    if destination is None or host != destination:
        raise Refused(
            f"the URL and the Host header name two servers: {parts.netloc!r:.80} and "
            f"{_host_header(request)!r:.80}"
        )
    return destination, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _named(request: h11.Request) -> tuple[str, int]:
    with contextlib.suppress(Refused):
        destination, _ = _absolute(request)
        return destination.host, destination.port
    return "", 0
