"""Inner WebSockets: a terminal's connection without a network, from this process to its server.

Offers what `client.terminals` uses of the library's connection. The invariant: at most a few
messages wait in each direction, then their sender waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosedError

from cellwall.apps.inner.leaving import Leaving
from cellwall.client.connection.transport import refusal
from cellwall.model.errors import ServerUnreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from cellwall.surface.shared.tasks import Tasks

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Mapping[str, str], Message, Receive, Send], Awaitable[None]]

_MOST_MESSAGES = 8
_ABNORMAL = 1006
"""Close code of a connection that ended without a close."""


class InnerSocket(Leaving):
    """One connection, as its client sees it."""

    def __init__(self) -> None:
        """Connected to nothing before `open`."""
        super().__init__()
        self._in: asyncio.Queue[Message] = asyncio.Queue(_MOST_MESSAGES)
        self._out: asyncio.Queue[str | bytes | None] = asyncio.Queue(_MOST_MESSAGES)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._refused: tuple[int, dict[str, str]] | None = None
        self._refusal = bytearray()
        self.close_code: int | None = None
        """Code with which the server has closed it; None while it is open."""

    async def open(
        self, app: Application, headers: Mapping[str, str], scope: Message, running: Tasks
    ) -> None:
        """Connect to `app`. Raises the error of the error envelope, or ServerUnreachable."""
        scope["extensions"] = {"cellwall.transport": self, "websocket.http.response": {}}
        await self._in.put({"type": "websocket.connect"})
        running.spawn(self._run(app, headers, scope))
        try:
            await self._accepted
        except asyncio.CancelledError:
            await self.close()
            raise

    async def _run(self, app: Application, headers: Mapping[str, str], scope: Message) -> None:
        try:
            await app(headers, scope, self._receive, self._send)
        finally:
            self._end(_ABNORMAL)

    # -- the server's side -----------------------------------------------------------------

    async def _receive(self) -> Message:
        coming = asyncio.ensure_future(self._in.get())
        if await _before(self._has_left, coming):
            return coming.result()
        return {"type": "websocket.disconnect", "code": 1000}

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept":
            self._settle(None)
        elif kind == "websocket.send":
            data = message.get("text") or message.get("bytes") or b""
            await _before(self._has_left, asyncio.ensure_future(self._out.put(data)))
        elif kind == "websocket.close":
            self._end(message.get("code", 1000))
        elif kind == "websocket.http.response.start":
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in message["headers"]}
            self._refused = (message["status"], headers)
        elif kind == "websocket.http.response.body":
            self._refusal += message.get("body", b"")
            if not message.get("more_body", False):
                self._end(_ABNORMAL)

    def _end(self, code: int) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self.close_code = code
        if self._refused is not None:
            status, headers = self._refused
            self._settle(refusal(status, bytes(self._refusal), headers))
        else:
            self._settle(ServerUnreachable("the server did not accept the connection"))
        if self._out.empty():
            self._out.put_nowait(None)

    def _settle(self, error: Exception | None) -> None:
        if self._accepted.done():
            return
        if error is None:
            self._accepted.set_result(None)
        else:
            self._accepted.set_exception(error)

    def abort(self) -> None:
        """Cut the connection."""
        self._has_left.set()
        self._end(_ABNORMAL)

    # -- the client's side -----------------------------------------------------------------

    async def recv(self) -> str | bytes:
        """Return the next message. Raises ConnectionClosed."""
        if self._ended.is_set() and self._out.empty():
            raise ConnectionClosedError(None, None)
        data = await self._out.get()
        if data is None:
            raise ConnectionClosedError(None, None)
        return data

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        """Yield messages until the connection is closed."""
        while True:
            try:
                yield await self.recv()
            except ConnectionClosedError:
                return

    async def send(self, message: str | bytes) -> None:
        """Send a message; wait while the server takes none. Raises ConnectionClosed."""
        key = "text" if isinstance(message, str) else "bytes"
        putting = asyncio.ensure_future(self._in.put({"type": "websocket.receive", key: message}))
        if not await _before(self._ended, putting) or self._ended.is_set():
            raise ConnectionClosedError(None, None)

    async def close(self) -> None:
        """Leave: the server gets a disconnect. Idempotent."""
        self._has_left.set()
        self._end(1000)


async def _before(end: asyncio.Event, work: asyncio.Future[Any]) -> bool:
    """Wait for `work`; False if `end` comes first, and the work is then cancelled."""
    ending = asyncio.ensure_future(end.wait())
    try:
        await asyncio.wait({work, ending}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        work.cancel()
        ending.cancel()


def scope_of(path: str, query: bytes) -> Message:
    """Return the scope of a WebSocket on a path."""
    return {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws",
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": query,
        "headers": [],
        "subprotocols": [],
        "server": ("localhost", 0),
    }
