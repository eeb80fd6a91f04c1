"""One HTTP/1.1 exchange with a server inside a sandbox, over a connection to its port.

Headers are filtered by `headers`. The other side is hostile: h11 parses it, with caps. The
invariant: bodies pass in pieces, each waited for, so neither side fills the server's memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import h11

from cellwall.model.errors import CellwallError, PortError, UsageError
from cellwall.server.core.disconnects import cancel_on_disconnect
from cellwall.server.core.errors import HttpError
from cellwall.server.core.request import ClientGone
from cellwall.server.port_proxy.headers import Headers, from_inside

if TYPE_CHECKING:
    from cellwall.engine.parts.ports import Connection
    from cellwall.server.core.request import Request

_STEP_BYTES = 64 * 1024
_HEAD_BYTES = 64 * 1024
_STATUSES = range(200, 600)
_BODILESS = frozenset({204, 304})


class Exchange:
    """One request and its answer."""

    def __init__(self, request: Request, connection: Connection, prefix: str) -> None:
        """`prefix` is the part of the path that belongs to this server."""
        self._request = request
        self._connection = connection
        self._prefix = prefix
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)

    async def run(self, target: bytes, headers: Headers) -> None:
        """Pass the request on and its answer back; `headers` are the filtered ones of the client.

        Raises `ClientGone`, 502, `PortError`; 400, 408 and 413 for faults of the request.
        """
        head = self._head(target, headers)
        sending = asyncio.ensure_future(self._send(head))
        try:
            await cancel_on_disconnect(self._request, self._answer(sending))
        except h11.RemoteProtocolError as error:
            raise HttpError(
                502,
                "port_protocol",
                f"port {self._connection.port}: what answers there does not speak HTTP/1.1",
                remedy="look at what the server inside sends",
            ) from error
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _head(self, target: bytes, passed: Headers) -> h11.Request:
        request = self._request
        headers = [
            *passed,
            *self._framing(),
            (b"x-forwarded-prefix", self._prefix.encode()),
            (b"x-forwarded-host", request.headers.get("host", "").encode("latin-1")),
            (b"x-forwarded-proto", request.scope["scheme"].encode()),
            (b"connection", b"close"),
        ]
        try:
            return h11.Request(method=request.scope["method"], target=target, headers=headers)
        except h11.LocalProtocolError as error:
            raise UsageError(
                f"request: it cannot be passed on: {error}", remedy="use an HTTP client"
            ) from None

    async def _send(self, head: h11.Request) -> None:
        request = self._request
        await self._write(head)
        async for piece in request.pieces(request.settings.upload_bytes):
            await self._write(h11.Data(data=piece))
        await self._write(h11.EndOfMessage())

    def _framing(self) -> Headers:
        length = self._request.headers.get("content-length")
        if length is not None:
            return [(b"content-length", length.encode())]
        if "transfer-encoding" in self._request.headers:
            return [(b"transfer-encoding", b"chunked")]
        return []

    async def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            try:
                async with asyncio.timeout(self._request.settings.stall_s):
                    await self._connection.write(data)
            except TimeoutError:
                raise self._stalled() from None

    def _stalled(self) -> PortError:
        # The client's disconnect cannot be seen behind bytes that were not taken: it may have left.
        stall_s = self._request.settings.stall_s
        return PortError(
            f"port {self._connection.port}: for {stall_s:g} s nothing was taken of the request",
            reason="timeout",
            remedy="see whether what listens there reads its requests",
        )

    async def _answer(self, sending: asyncio.Task[None]) -> None:
        request = self._request
        while True:
            event = await self._next(sending)
            if isinstance(event, h11.Response):
                await self._start(event)
            elif isinstance(event, h11.Data):
                await request.write(bytes(event.data))
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                if not request.has_answered:
                    raise h11.RemoteProtocolError("it closed without an answer")
                await request.end()
                return

    async def _start(self, response: h11.Response) -> None:
        request, status = self._request, response.status_code
        if status not in _STATUSES:
            raise h11.RemoteProtocolError(f"its status is {status}")
        # Iterated, h11's headers have lower-case names.
        raw = list(response.headers)
        headers = from_inside(
            raw, self._connection.port, self._prefix, request.settings.port_headers
        )
        # In a 204 or 304 answer, or beside Transfer-Encoding, Content-Length is not the length of
        # the body, and uvicorn would take it for that.
        if status not in _BODILESS and not any(name == b"transfer-encoding" for name, _ in raw):
            headers += [each for each in raw if each[0] == b"content-length"]
        request.has_answered = True
        request.is_passed_on = True
        await request.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _next(self, sending: asyncio.Task[None]) -> h11.Event:
        """Return the next event of the answer, reading as much as it needs."""
        while True:
            event = self._http.next_event()
            if event is h11.PAUSED:
                raise h11.RemoteProtocolError("it wants to change the protocol")
            if event is not h11.NEED_DATA:
                assert not isinstance(event, type)  # noqa: S101 - the two types there are
                return event
            self._http.receive_data(await self._read(sending))

    async def _read(self, sending: asyncio.Task[None]) -> bytes:
        reading = asyncio.ensure_future(self._connection.read(_STEP_BYTES))
        try:
            if not sending.done():
                await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                self._check(sending)
                await self._request.wait(reading)
            return await reading
        finally:
            reading.cancel()

    def _check(self, sending: asyncio.Task[None]) -> None:
        error = None if sending.cancelled() else sending.exception()
        if error is None:
            return
        if isinstance(error, ClientGone):
            raise error
        # A server may answer without having read the request: then its answer counts. But a fault
        # of the request itself is reported by this side, because the inside waits for the rest of
        # it.
        is_stalled = isinstance(error, PortError) and error.reason == "timeout"
        is_ours = (is_stalled or isinstance(error, HttpError)) and not self._request.has_answered
        if is_ours or not isinstance(error, (CellwallError, h11.LocalProtocolError)):
            raise error
