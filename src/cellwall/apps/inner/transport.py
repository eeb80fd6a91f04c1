"""Inner requests: HTTP without a connection, from this process to its own server.

A tool's work thus takes the path of every other request: the same scope, ownership, quotas, limits
and audit, through the same table of routes. Whole answers go straight to the server's routes;
streams are an `httpx` transport over ASGI, with backpressure. The invariant: a caller that leaves
counts as a client that disconnected, and the application is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote, urlencode

import httpx

from cellwall.apps.inner.leaving import Leaving
from cellwall.client.connection.transport import Ask, Json, Transport, present, refusal
from cellwall.wire.asking import encoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from websockets.asyncio.client import ClientConnection

    from cellwall.client.connection.address import Address
    from cellwall.client.connection.retry import Budget
    from cellwall.surface.shared.tasks import Tasks

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Mapping[str, str], Message, Receive, Send], Awaitable[None]]
    """Function that serves a request with these headers for one caller."""
    Peer = tuple[str, int] | None

_MOST_PIECES = 8
"""Maximum number of body pieces that wait for their reader; then the application waits."""


class InnerTransport(Transport):
    """Transport of the client library to this process's own server."""

    is_near = True

    def __init__(
        self, address: Address, timeout_s: float, app: Application, running: Tasks, peer: Peer
    ) -> None:
        """`peer` is the address for the log; `running` supervises the server's work."""
        self._wire = InnerWire(app, running, peer)
        super().__init__(address, timeout_s, self._wire)
        self._app = app
        self._running = running
        self._peer = peer

    async def json(self, ask: Ask) -> Json:
        """Return the object that answers. Raises the error of the error envelope."""
        if callable(ask.content):
            return await super().json(ask)
        data, headers = _sent(ask)
        whole = _Whole(data)
        scope = _scope(
            ask.method, unquote(ask.path), urlencode(present(ask.params)).encode(), whole
        )
        scope["client"] = self._peer
        self._running.spawn(whole.run(self._app, headers, scope))
        try:
            body = await whole.answered
        except asyncio.CancelledError:
            whole.leave()
            raise
        except httpx.TransportError as error:
            raise self.unreachable(error) from None
        if whole.status >= 400:
            raise refusal(whole.status, body, whole.headers())
        value: Json = json.loads(body)
        return value

    @contextlib.asynccontextmanager
    async def stream(self, ask: Ask, _: Budget | None = None) -> AsyncIterator[httpx.Response]:
        """Yield an answer before its body; what an HTTP client does beside that is left out."""
        try:
            response = await self._wire.handle_async_request(
                self._built(ask, self.servers.choose())
            )
        except httpx.TransportError as error:
            raise self.unreachable(error) from error
        try:
            if response.is_error:
                await response.aread()
            yield self._checked(response)
        finally:
            await response.aclose()

    async def socket(self, path: str, params: Mapping[str, Any]) -> ClientConnection:
        """Open a WebSocket. Raises the error of the error envelope, or ServerUnreachable."""
        from cellwall.apps.inner.sockets import InnerSocket, scope_of

        made = InnerSocket()
        scope = scope_of(path, urlencode(present(params)).encode())
        scope["client"] = self._peer
        await made.open(self._app, {"host": "localhost"}, scope, self._running)
        return cast("ClientConnection", made)


def _sent(ask: Ask) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request."""
    data = ask.content if isinstance(ask.content, bytes) else b""
    headers = {**ask.headers, "accept": ask.accept or "*/*", "host": "localhost"}
    if ask.body is not None:
        data, headers["content-type"] = encoded(ask.body), "application/json"
    elif ask.content is not None:
        headers["content-type"] = ask.media
    if ask.key is not None:
        headers["idempotency-key"] = ask.key
    return data, {**headers, "content-length": str(len(data))}


def _scope(method: str, path: str, query: bytes, exchange: object) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": query,
        "headers": [],
        "server": ("localhost", 0),
        "extensions": {"cellwall.transport": exchange},
    }


class _Whole(Leaving):
    """One request whose answer is read in one piece."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data: bytes | None = data
        self._raw: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self.status = 0
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def run(self, app: Application, headers: Mapping[str, str], scope: Message) -> None:
        try:
            await app(headers, scope, self._receive, self._send)
        finally:
            self._fail("the application did not answer")

    def headers(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._raw}

    async def _receive(self) -> Message:
        if self._data is not None:
            data, self._data = self._data, None
            return {"type": "http.request", "body": data, "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self._raw = message["status"], list(message.get("headers", ()))
            return
        self._parts.append(message.get("body", b""))
        if not message.get("more_body", False) and not self.answered.done():
            self.answered.set_result(b"".join(self._parts))

    def _fail(self, why: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(httpx.RemoteProtocolError(why))
            self.answered.exception()  # the caller may have left

    def leave(self) -> None:
        """Tell the application that the caller has left."""
        self._has_left.set()

    def abort(self) -> None:
        """Cut the answer: the application cannot send what it announced, or the key is void."""
        self._fail("the answer was cut")
        self.leave()


class InnerWire(httpx.AsyncBaseTransport):
    """An httpx transport that passes requests to an application on this event loop."""

    def __init__(self, app: Application, tasks: Tasks, client: Peer) -> None:
        """`client` is the address for the log; `tasks` runs the application."""
        self._app = app
        self._tasks = tasks
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response as soon as its headers are there."""
        exchange = _Exchange(request)
        exchange.task = self._tasks.spawn(exchange.run(self._app, self._client))
        try:
            status, headers = await exchange.started
        except asyncio.CancelledError:
            exchange.leave()
            raise
        return httpx.Response(status, headers=headers, stream=exchange)


class _Exchange(Leaving, httpx.AsyncByteStream):
    """One request and its answer."""

    def __init__(self, request: httpx.Request) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self._request = request
        self._body = self._pieces()
        self._is_read = False
        self._answer: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_PIECES)
        self._is_whole = False
        self.started: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = loop.create_future()
        self.task: asyncio.Task[None] | None = None

    async def _pieces(self) -> AsyncIterator[bytes]:
        if isinstance(self._request.stream, httpx.AsyncByteStream):
            async for piece in self._request.stream:
                yield piece

    async def run(self, app: Application, client: Peer) -> None:
        url = self._request.url
        scope = _scope(self._request.method, url.path, url.query, self)
        scope["client"] = client
        headers = {name.lower(): value for name, value in self._request.headers.items()}
        try:
            await app(headers, scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - the reader of the answer gets it
            self._fail(httpx.ReadError(f"the application failed: {type(error).__name__}"))
        finally:
            self._fail(httpx.RemoteProtocolError("the application did not answer"))
            if not self._has_left.is_set():
                await self._answer.put(None)

    def _fail(self, error: Exception) -> None:
        if not self.started.done():
            self.started.set_exception(error)
            self.started.exception()  # the caller may have left

    async def _receive(self) -> Message:
        if not self._is_read:
            piece = await anext(self._body, None)
            if piece is not None:
                return {"type": "http.request", "body": piece, "more_body": True}
            self._is_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._has_left.is_set():
            return
        if message["type"] == "http.response.start":
            if not self.started.done():
                self.started.set_result((message["status"], list(message.get("headers", ()))))
            return
        if data := message.get("body", b""):
            await self._answer.put(data)
        self._is_whole = not message.get("more_body", False)
        if self._is_whole:
            await self._answer.put(None)

    # -- the reader's side -----------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body; `httpx.RemoteProtocolError` if it is incomplete."""
        while (piece := await self._answer.get()) is not None:
            yield piece
        if not self._is_whole:
            raise httpx.RemoteProtocolError("the answer ended before it was whole")

    async def aclose(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Stop reading: a waiting sender goes on and is told that the reader has left."""
        self._has_left.set()
        while not self._answer.empty():
            self._answer.get_nowait()

    def abort(self) -> None:
        """Cut the answer: the application cannot send what it announced."""
        self._is_whole = False
        self.leave()
        self._answer.put_nowait(None)
