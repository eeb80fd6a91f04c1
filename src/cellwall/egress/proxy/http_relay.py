"""HTTP/1.1 between a program and a server, each request checked before a byte of it goes out.

h11 reads both sides and writes both anew, so that what the server reads is what was checked: a
request with two meanings (two lengths, a bare line feed, an odd header) is an error here. It is
used for plain HTTP to an allowed destination, and for programs that use the HTTP proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import h11

from cellwall.egress.proxy.meter import Meter
from cellwall.egress.proxy.relay import Stream, relay_streams
from cellwall.egress.proxy.sandbox_network import Refused, Unreachable
from cellwall.egress.tls.substitution import Fields, Substitution

MOST_HEAD_BYTES = 65_536
HTTP_2 = b"PRI "
"""What begins HTTP/2 without TLS (RFC 9113, section 3.4); its requests cannot be looked at here."""
REQUEST_LINE = re.compile(rb"\s*[A-Za-z]{1,32} [^\r\n]* HTTP/1\.[0-9]\r?\n")
"""What begins an HTTP/1 request; a server may skip blank lines before it, so we look past them."""
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
"""Header fields of one connection, RFC 9110, section 7.6.1; h11 writes the transfer's own."""


class Unsearchable(Exception):
    """An answer that has to be searched for values of secrets, and cannot be."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where one request goes."""

    server: Side
    target: bytes
    """Request target in origin form."""
    host: bytes
    """Value of the `Host` header that the server gets."""
    secrets: Substitution | None = None
    """What is replaced in the request and in its answer; None: nothing."""
    fields: Sequence[tuple[bytes, bytes]] = ()
    """Header fields that the request gets in place of its own of these names."""


class Side:
    """One end of a connection and what h11 knows of it."""

    def __init__(
        self, stream: Stream, role: type[h11.CLIENT] | type[h11.SERVER], first: bytes = b""
    ) -> None:
        """`role` is ours; `first` was read already."""
        self.stream = stream
        self.http = h11.Connection(role, max_incomplete_event_size=MOST_HEAD_BYTES)
        if first:
            self.http.receive_data(first)

    async def next_event(self) -> Any:  # noqa: ANN401 - one of h11's events
        """Return the next event of the other end. Raises h11.RemoteProtocolError, OSError."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.receive())
        return event

    async def send(self, event: Any) -> None:  # noqa: ANN401 - one of h11's events
        """Write an event to the other end."""
        data = self.http.send(event)
        if data:
            await self.stream.send(data)

    def rest(self) -> bytes:
        """Return what was read and belongs to no request; after a change of protocols."""
        return bytes(self.http.trailing_data[0])


Route = Callable[[h11.Request], Awaitable[Way]]


async def serve(
    client: Side, meter: Meter, route: Route, request: h11.Request | None = None
) -> None:
    """Serve the requests of one connection until it ends; `request` was read already.

    `route` decides on each and gives the server for it; `Refused` and `Unreachable` from it are
    answered with a sentence. Raises OSError, `LimitReached`.
    """
    while True:
        try:
            event = request or await client.next_event()
            request = None
            if not isinstance(event, h11.Request):
                return  # the program has ended the connection
            _check_framing(event)
            way = await route(event)
        except Refused as error:
            await answer(client, 403, f"refused: {error}")
            return
        except Unreachable as error:
            await answer(client, 502, f"not reached: {error}")
            return
        except h11.RemoteProtocolError as error:
            await answer(client, 400, f"no request that can be passed on: {error}")
            return
        try:
            goes_on = await _exchange(client, way, event, meter)
        except Unsearchable as error:
            await answer(client, 502, str(error))
            return
        if not goes_on:
            return
        client.http.start_next_cycle()


def _check_framing(request: h11.Request) -> None:
    """Raise h11.RemoteProtocolError for a body whose end two servers find in two places.

    h11 takes the chunks where there is a length as well, and a server may take the length: what we
    read as a body would be a request to it that was never checked (RFC 9112, section 6.1).
    """
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names or request.http_version < b"1.1":
        raise h11.RemoteProtocolError("it has chunks and a length, or chunks in HTTP/1.0")


async def answer(client: Side, status: int, sentence: str) -> None:
    """Answer with a sentence, which says that it is not the server's, and end."""
    if client.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    body = f"cellwall: {sentence}\n".encode()
    fields = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        ("Via", "1.1 cellwall"),
    ]
    reason = {403: b"Forbidden", 502: b"Bad Gateway"}.get(status, b"Bad Request")
    data = client.http.send(h11.Response(status_code=status, headers=fields, reason=reason))
    with contextlib.suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
        data += client.http.send(h11.Data(data=body))
        data += client.http.send(h11.EndOfMessage())
    await client.stream.send(data)


async def _exchange(client: Side, way: Way, request: h11.Request, meter: Meter) -> bool:
    """Pass on one request and its answer; whether another may follow on the connection."""
    server = way.server
    upgrades = _wants_upgrade(request)
    fields = _with(way.fields, _passed(request.headers, keep_upgrade=upgrades))
    target, replaced = way.target, way.secrets
    if replaced is not None:
        # SECURITY: the last step, behind every decision and record of the request.
        target, fields = replaced.request(target, fields)
    fields.insert(0, (b"Host", way.host))
    await server.send(h11.Request(method=request.method, target=target, headers=fields))
    answers = _Answers(client, replaced, upgrades=upgrades)
    is_switched = await _both_ways(client, server, answers)
    if is_switched:
        await server.stream.send(client.rest())
        await client.stream.send(server.rest())
        await relay_streams(client.stream, server.stream, meter)
        return False
    if not (client.http.our_state is client.http.their_state is h11.DONE):
        return False
    if not (server.http.our_state is server.http.their_state is h11.DONE):
        return False
    server.http.start_next_cycle()
    return True


async def _both_ways(client: Side, server: Side, answers: _Answers) -> bool:
    """Pass on the request's body and the answer, which may come before the body has ended."""
    sending = asyncio.ensure_future(_send_body(client, server))
    answering = asyncio.ensure_future(answers.pass_on(server))
    try:
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and not answering.done():
            sending.result()  # raises what was wrong with the body
        return await answering
    finally:
        for each in (sending, answering):
            each.cancel()
        await asyncio.gather(sending, answering, return_exceptions=True)


async def _send_body(client: Side, server: Side) -> None:
    while True:
        event = await client.next_event()
        if isinstance(event, h11.Data):
            await server.send(h11.Data(data=event.data))
        elif isinstance(event, h11.EndOfMessage):
            await server.send(h11.EndOfMessage())
            return
        else:
            return  # the program has gone; the answer finds out


class _Answers:
    """The answer to one request on its way to the program."""

    def __init__(self, client: Side, replaced: Substitution | None, *, upgrades: bool) -> None:
        """`replaced`: what may have to be hidden in it; None: nothing."""
        self._client = client
        self._replaced = replaced if replaced is not None and replaced.searches else None
        self._search = None if self._replaced is None else self._replaced.body()
        self._upgrades = upgrades

    async def pass_on(self, server: Side) -> bool:
        """Pass on the answer; whether the protocol was changed."""
        while True:
            event = await server.next_event()
            if isinstance(event, h11.InformationalResponse):
                if await self._interim(event):
                    return True
            elif isinstance(event, h11.Response):
                closes = server.http.their_state is h11.MUST_CLOSE or _closes(event)
                await self._begin(event, closes=closes)
            elif isinstance(event, h11.Data):
                await self._data(event.data)
            elif isinstance(event, h11.EndOfMessage):
                if self._search is not None and (rest := self._search.rest()):
                    await self._client.send(h11.Data(data=rest))
                await self._client.send(h11.EndOfMessage())
                return False
            else:
                raise h11.RemoteProtocolError("the server ended before its answer")

    async def _interim(self, event: h11.InformationalResponse) -> bool:
        is_switched = event.status_code == 101
        if is_switched and not self._upgrades:
            raise h11.RemoteProtocolError("the server changed a protocol unasked")
        fields, reason = self._hidden(_passed(event.headers, keep_upgrade=is_switched), event)
        await self._client.send(
            h11.InformationalResponse(status_code=event.status_code, headers=fields, reason=reason)
        )
        return is_switched

    async def _begin(self, event: h11.Response, *, closes: bool) -> None:
        fields, reason = self._hidden(_passed(event.headers), event)
        if self._replaced is not None:
            fields = _searchable(fields, keeps_length=self._replaced.keeps_length)
        if closes:
            fields.append((b"Connection", b"close"))
        await self._client.send(
            h11.Response(status_code=event.status_code, headers=fields, reason=reason)
        )

    async def _data(self, data: bytes) -> None:
        if self._search is not None:
            data = self._search.feed(bytes(data))
        if data:
            await self._client.send(h11.Data(data=data))

    def _hidden(
        self, fields: list[tuple[bytes, bytes]], event: h11.Response | h11.InformationalResponse
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Return header fields and reason of an answer without a value."""
        reason = bytes(event.reason)
        if self._replaced is None:
            return fields, reason
        return self._replaced.fields(fields), self._replaced.hidden(reason)


def _searchable(
    fields: list[tuple[bytes, bytes]], *, keeps_length: bool
) -> list[tuple[bytes, bytes]]:
    """Return the fields of an answer that is searched. Raises `Unsearchable`."""
    for name, value in fields:
        if name.lower() == b"content-encoding" and value.strip().lower() != b"identity":
            raise Unsearchable(
                f"the answer is compressed ({value!r:.30}), although it was asked for as it is: it "
                "cannot be searched for the value of a secret"
            )
    if keeps_length:
        return fields
    return [each for each in fields if each[0].lower() != b"content-length"]


def _passed(
    headers: Any,  # noqa: ANN401 - h11's own type
    *,
    keep_upgrade: bool = False,
) -> list[tuple[bytes, bytes]]:
    """Return the fields that pass: none of the connection's own, and no second `Host`."""
    named = {
        word.strip().lower()
        for name, value in headers
        if name == b"connection"
        for word in value.split(b",")
    } - {b"host", b"content-length", b"transfer-encoding"}
    if any(name == b"transfer-encoding" for name, _ in headers):
        named.add(b"content-length")  # of an answer; the chunks are what h11 reads
    fields = [
        (name, value)
        for name, value in headers.raw_items()
        if name.lower() not in _HOP_BY_HOP and name.lower() not in named and name.lower() != b"host"
    ]
    if keep_upgrade:
        protocol = next(value for name, value in headers if name == b"upgrade")
        fields += [(b"Connection", b"Upgrade"), (b"Upgrade", protocol)]
    return fields


def _with(given: Sequence[tuple[bytes, bytes]], fields: Fields) -> Fields:
    """Return the fields of a request with those that its sandbox's policy sets."""
    names = {name.lower() for name, _ in given}
    return [*(each for each in fields if each[0].lower() not in names), *given]


def _wants_upgrade(request: h11.Request) -> bool:
    """Whether a request asks for a WebSocket, the one change of protocols that passes.

    HTTP/2 by an upgrade (h2c) would carry requests that are not looked at.
    """
    protocols = [value.lower() for name, value in request.headers if name == b"upgrade"]
    words = b",".join(value.lower() for name, value in request.headers if name == b"connection")
    return protocols == [b"websocket"] and b"upgrade" in words


def _closes(response: h11.Response) -> bool:
    words = [value.lower() for name, value in response.headers if name == b"connection"]
    return b"close" in b",".join(words)
