"""One request on its way through the server: its caller, its target, how to read and answer it.

Made by `guards` with the facts known before the body is read; handed to a handler by `endpoint`. It
is no general request object. The invariant: `principal` comes from the key (or a token made by this
server) alone, and a handler reaches other objects only through `ownership`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.server.core.body_budget import Held
from cellwall.server.core.errors import HttpError
from cellwall.server.core.request_context import Origin
from cellwall.wire.answer import one_line

_T = TypeVar("_T")

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from cellwall.engine.scheduling.quotas import Use
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.executions.record import ExecutionRecord, KeptExecution
    from cellwall.server.state import State

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

JSON_TYPE = "application/json"
_STARTS = frozenset({"http.response.start", "websocket.http.response.start", "websocket.accept"})
_SMALL_BYTES, _SMALL_S = 64 * 1024, 0.5
"""Bytes and seconds of a refused body that are read before the answer."""
_DRAIN_S = 1.0
_DRAIN_BYTES = 8 * 1024 * 1024
"""Bytes of a refused body that are read and discarded from any client."""
_DRAIN_KNOWN_S = 60.0
"""Seconds of reading on from a client with a key; it may send as much as an upload may have."""
_DRAIN_PAUSE_S = 2.0


class ClientGone(Exception):
    """The client closed its connection, or does not take data any more."""


class Request:
    """One request and its answer; see the module."""

    __slots__ = (
        "__weakref__",
        "_body_read",
        "_gone",
        "_send",
        "action",
        "claims",
        "counted",
        "execution",
        "execution_id",
        "has_answered",
        "headers",
        "held",
        "is_passed_on",
        "lender",
        "object",
        "origin",
        "params",
        "principal",
        "receive",
        "request_id",
        "route",
        "scope",
        "state",
        "status",
    )

    def __init__(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
        headers: Mapping[str, str],
        request_id: str,
        principal: Principal | None,
    ) -> None:
        """`headers` by lower-case name; of repeated ones the last."""
        self.scope = scope
        self.receive = receive
        self._send = send
        self.headers = headers
        self.request_id = request_id
        self.principal = principal
        self.params: Mapping[str, str] = {}
        self.state: State
        self.execution: ExecutionRecord | KeptExecution | None = None
        """The execution that the path names, once it is found."""
        self.route = ""
        """Pattern of the path, once it is found; for logs and metrics."""
        self.status = 0
        """Status of the answer; 0 while there is none."""
        self.execution_id: str | None = None
        """Id of the execution the request is about, if the answer says so."""
        self.origin = Origin(request_id)
        self.action: str | None = None
        """Name of the action in the audit."""
        self.object = ""
        """Object of the action in the audit."""
        self.claims: Mapping[str, Any] = {}
        """Permissions of a server's token that stands for a key, once it was opened."""
        self.lender: str | None = None
        """Id of the key that signed that token."""
        self.counted: Use | None = None
        """Use of the tenant that counts this request among its running ones; None: it is not
        counted."""
        self.has_answered = False
        self.is_passed_on = False
        """Whether the status was chosen by a server inside a sandbox."""
        self.held: Held | None = None
        """Count of the body's bytes, as far as they were read to be kept; held until `close`, or
        longer."""
        self._body_read = False
        self._gone: asyncio.Task[None] | None = None

    @property
    def settings(self) -> ServerSettings:
        """The server's settings."""
        return self.state.settings

    @property
    def owner(self) -> str:
        """The calling tenant; raises a 401 without a valid key."""
        return self.caller.tenant

    @property
    def caller(self) -> Principal:
        """The calling principal; raises a 401 without a valid key."""
        if self.principal is None:
            raise unauthorized()
        return self.principal

    # -- the body --------------------------------------------------------------------------

    def check_type(self, wanted: str) -> None:
        """Raise 415 unless the body's media type is `wanted`."""
        given = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != wanted:
            raise HttpError(
                415,
                "content_type",
                f"body: Content-Type {given[:80]!r} where {wanted} is needed",
                remedy=f"send Content-Type: {wanted}",
            )
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpError(
                415, "content_type", "body: compressed bodies are not taken", remedy="send it plain"
            )

    async def pieces(self, most_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body as it comes; 413 above `most_bytes`, whatever length was announced."""
        announced = self.headers.get("content-length")
        if announced is not None and int(announced) > most_bytes:
            raise too_large(most_bytes)
        size = 0
        while not self._body_read:
            try:
                async with asyncio.timeout(self.settings.body_s):
                    message = await self.receive()
            except TimeoutError:
                raise HttpError(
                    408, "timeout", "body: it comes too slowly", remedy="send it in one go"
                ) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._body_read = not message.get("more_body", False)
            data: bytes = message.get("body", b"")
            size += len(data)
            if size > most_bytes:
                raise too_large(most_bytes)
            if data:
                yield data

    async def body(self, most_bytes: int) -> bytes:
        """Return the whole body; `CapacityError` while other bodies take the budget."""
        held = self.holding()
        pieces, size = [], 0
        async for piece in self.pieces(most_bytes):
            size += len(piece)
            held.resize(size)
            pieces.append(piece)
        return b"".join(pieces)

    def holding(self) -> Held:
        """Return the counter of the body's held bytes."""
        if self.held is None:
            tenant = "" if self.principal is None else self.principal.tenant
            self.held = Held(self.state.bodies, tenant)
        return self.held

    @property
    def is_body_read(self) -> bool:
        """Whether the whole body was read."""
        return self._body_read

    # -- the other end ---------------------------------------------------------------------

    async def wait(self, future: asyncio.Future[Any], timeout_s: float | None = None) -> bool:
        """Wait for `future`; False after `timeout_s`.

        Raises `ClientGone` if the client leaves first. Only after the body was read: the next
        message is then the disconnect.
        """
        if future.done():
            return True
        if self._gone is None:
            self._gone = self.state.tasks.spawn(self._wait_gone())
        await asyncio.wait(
            (future, self._gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not future.done() and self._gone.done():
            raise ClientGone
        return future.done()

    async def unless_gone(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` returns; if the client leaves first, cancel it and raise `ClientGone`.

        Returns when the work has ended. Only after the body was read, as `wait`.
        """
        doing = asyncio.ensure_future(work)
        try:
            await self.wait(doing)
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
        return doing.result()

    @property
    def is_gone(self) -> bool:
        """Whether the client has left, as far as `wait` has learnt."""
        return self._gone is not None and self._gone.done()

    async def _wait_gone(self) -> None:
        while (await self.receive())["type"] not in {"http.disconnect", "websocket.disconnect"}:
            pass

    def close(self) -> None:
        """Stop watching for the client's disconnect, and let go of its body."""
        if self.held is not None:
            self.held.release()
        if self._gone is not None:
            self._gone.cancel()
            self._gone = None  # the ended task's exception has frames, and they hold this request

    def abort(self) -> None:
        """Cut the connection: the announced answer cannot be completed."""
        transport = self.scope.get("extensions", {}).get("cellwall.transport")
        if transport is not None:
            transport.abort()

    # -- answering -------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Send an ASGI message; an answer's first one gets the headers that every answer has."""
        # No closure over `self`: in a reference cycle with it, its body stayed until the next
        # collection.
        if message["type"] in _STARTS:
            self._note_start(message)
        await self._send(message)

    def _note_start(self, message: Message) -> None:
        """Add the request id to the answer's headers, and note status and execution for the log."""
        headers = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
        message["headers"] = headers
        self.status = message.get("status", 101)
        for name, value in headers:
            if name == b"x-execution-id":
                self.execution_id = value.decode("latin-1")

    async def start(
        self, status: int, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send status and headers."""
        self.has_answered = True
        raw = [(b"content-type", media_type.encode())]
        for name, value in (headers or {}).items():
            raw.append((name.encode("latin-1"), value.encode("latin-1")))
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; `ClientGone` if the client does not take it in time."""
        try:
            async with asyncio.timeout(self.settings.stall_s):
                await self.send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            self.abort()
            raise ClientGone from None

    async def end(self) -> None:
        """End the body."""
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(
        self,
        value: Mapping[str, Any],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one JSON object."""
        await self.answer_line(one_line(value), status, headers)

    async def answer_line(
        self, line: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send one JSON object that `one_line` has encoded."""
        await self.answer_bytes(line.encode(), JSON_TYPE, status, headers)

    async def refuse(
        self, value: Mapping[str, Any], status: int, headers: Mapping[str, str]
    ) -> None:
        """Answer although the body may not have been read.

        The rest of the body is read and discarded, so that the answer arrives instead of a reset:
        clients read once they have sent. From clients without a key, and of a body above the upload
        limit, only a little is read. A small rest is read before the answer: some clients give a
        connection up when they are answered while they send.
        """
        if self.held is not None:
            self.held.release()
        if self._has_rest and self._is_small:
            await self._drain(_SMALL_BYTES, _SMALL_S)
        if not self._has_rest:
            await self.answer(value, status, headers)
            return
        data = one_line(value).encode()
        closing = {**headers, "connection": "close", "content-length": str(len(data))}
        await self.start(status, JSON_TYPE, closing)
        await self.send({"type": "http.response.body", "body": data[:-1], "more_body": True})
        await self._drain(*self._patience)
        await self.send({"type": "http.response.body", "body": data[-1:], "more_body": False})

    @property
    def _has_rest(self) -> bool:
        if self._body_read:
            return False
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"

    @property
    def _is_small(self) -> bool:
        announced = int(self.headers.get("content-length", "0"))
        return announced <= _SMALL_BYTES and "expect" not in self.headers

    async def _drain(self, most_bytes: int, longest_s: float) -> None:
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while size < most_bytes:
                    async with asyncio.timeout(_DRAIN_PAUSE_S):
                        message = await self.receive()
                    size += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        self._body_read = True
                        return

    @property
    def _patience(self) -> tuple[int, float]:
        """Most bytes and seconds to read of a refused body.

        A request that is not counted gets as little as one without a key: otherwise a refusal would
        give its client one more connection.
        """
        announced = int(self.headers.get("content-length", "0"))
        is_stranger = self.principal is None or self.counted is None
        if is_stranger or announced > self.settings.upload_bytes:
            return _DRAIN_BYTES, _DRAIN_S
        return self.settings.upload_bytes, _DRAIN_KNOWN_S

    async def answer_bytes(
        self,
        data: bytes,
        media_type: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole body of any type."""
        sized = {"content-length": str(len(data)), **(headers or {})}
        await self.start(status, media_type, sized)
        body = b"" if self.scope.get("method") == "HEAD" else data
        await self.send({"type": "http.response.body", "body": body, "more_body": False})


def unauthorized() -> HttpError:
    """Return the 401."""
    return HttpError(
        401,
        "unauthorized",
        "key: there is none, or it is not known here",
        remedy="send Authorization: Bearer KEY or X-API-Key: KEY",
        headers={"www-authenticate": "Bearer"},
    )


def refused_key(wait_s: float) -> HttpError:
    """Return the 401, or the 429 of an address that has to wait for so long after wrong keys."""
    if wait_s <= 0:
        return unauthorized()
    return HttpError(
        429,
        "rate_limited",
        "key: too many refused keys from this address",
        remedy="wait, and use a valid key",
        headers={"retry-after": str(int(wait_s) + 1)},
    )


def too_large(most_bytes: int) -> HttpError:
    """Return the 413; the rest of the body is not read, so the connection ends."""
    return HttpError(
        413,
        "too_large",
        f"body: more than {most_bytes} bytes",
        remedy="send less at once",
        headers={"connection": "close"},
    )
