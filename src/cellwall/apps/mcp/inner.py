"""HTTP without a wire: requests of this process to its own server's application.

So that what a tool does goes the way of every other request: the same key, tenant, quotas, audit.
An `httpx` transport over ASGI; answers are streamed with backpressure. The invariant: a caller
that goes away is a client that went away, and the application is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from cellwall.surface.tasks import Tasks

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Message, Receive, Send], Awaitable[None]]

_MOST_PIECES = 8
"""Pieces of a body that wait for their reader; then the application waits."""


class InnerTransport(httpx.AsyncBaseTransport):
    """Gives requests to an application on this event loop."""

    def __init__(self, app: Application, tasks: Tasks, client: tuple[str, int] | None) -> None:
        """`client` is the address that stands in the log; `tasks` runs the application."""
        self._app = app
        self._tasks = tasks
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer as soon as its headers are there."""
        exchange = _Exchange(request)
        exchange.task = self._tasks.spawn(exchange.run(self._app, self._client))
        try:
            status, headers = await exchange.started
        except asyncio.CancelledError:
            exchange.leave()
            raise
        return httpx.Response(status, headers=headers, stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer."""

    def __init__(self, request: httpx.Request) -> None:
        loop = asyncio.get_running_loop()
        self._request = request
        self._body = self._pieces()
        self._is_read = False
        self._has_left = asyncio.Event()
        self._answer: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_PIECES)
        self._is_whole = False
        self.started: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = loop.create_future()
        self.task: asyncio.Task[None] | None = None

    async def _pieces(self) -> AsyncIterator[bytes]:
        if isinstance(self._request.stream, httpx.AsyncByteStream):
            async for piece in self._request.stream:
                yield piece

    async def run(self, app: Application, client: tuple[str, int] | None) -> None:
        """Let the application answer."""
        url = self._request.url
        scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "client": client,
            "server": (url.host, url.port),
            "extensions": {"cellwall.transport": self},
        }
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the answer
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
        """Yield the body; `httpx.RemoteProtocolError` if it is not whole."""
        while (piece := await self._answer.get()) is not None:
            yield piece
        if not self._is_whole:
            raise httpx.RemoteProtocolError("the answer ended before it was whole")

    async def aclose(self) -> None:
        """Take no more."""
        self.leave()

    def leave(self) -> None:
        """The reader is gone: whoever waits to send may go on, and is told."""
        self._has_left.set()
        while not self._answer.empty():
            self._answer.get_nowait()

    def abort(self) -> None:
        """Cut it: the application cannot send what it announced."""
        self._is_whole = False
        self.leave()
        self._answer.put_nowait(None)
