"""Calls: the methods of the Connect protocol over one HTTP request, unary and streaming.

A method is a function from messages to messages. The invariants: each stream that was begun ends
with its last envelope, unless the client is gone; and an error of a stream is in that envelope,
under status 200, because clients read it only there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.e2b.daemon.connect import connect_codec as connect
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import Codec, ConnectError
from cellwall.apps.doors.e2b.daemon.faults import connect_error
from cellwall.apps.doors.e2b.seat import SandboxGone
from cellwall.model.errors import SandboxUnavailable
from cellwall.server.core.disconnects import cancel_on_disconnect
from cellwall.server.core.request import ClientGone

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.daemon.connect.schema import Message, Value
    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.server.core.request import Request

    Handler = Callable[[Seat], Awaitable[None]]
    Unary = Callable[[Seat, Value], Coroutine[Any, Any, Value]]
    Serving = Callable[[Seat, Value, "Stream"], Awaitable[None]]
    Taking = Callable[[Seat, AsyncIterator[Value]], Coroutine[Any, Any, Value]]

_MOST_REQUEST_BYTES = 8 * 1024 * 1024
"""Maximum bytes of a request that is one message, except for input to a process."""
_ENDED = "the sandbox was killed or reached its end of life while the request was in flight"
"""What the SDKs say of a connection that breaks off. A stream over HTTP/1.1 that breaks off they do
not all tell from a network that fails."""


def unary(
    asked: Message, answered: Message, work: Unary, most_bytes: int = _MOST_REQUEST_BYTES
) -> Handler:
    """Return the handler of a method with one message each way; the work ends with its client."""

    async def handle(seat: Seat) -> None:
        request = seat.request
        codec = connect.codec_of(request.headers.get("content-type", ""), is_stream=False)
        if codec is None:
            await _refuse_type(request, is_stream=False)
            return
        try:
            _check_encoding(request, is_stream=False)
            limit_s = connect.timeout_s(request.headers)
            value = codec.decode(asked, await request.body(most_bytes))
            async with asyncio.timeout(limit_s):
                found = await request.unless_gone(work(seat, value))
        except TimeoutError:
            await _refuse(request, ConnectError("deadline_exceeded", "the call took too long"))
        except ClientGone:
            raise
        except SandboxUnavailable:
            raise SandboxGone(seat.sandbox.id) from None
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            await _refuse(request, connect_error(error))
        else:
            await request.answer_bytes(codec.encode(answered, found), codec.media)

    return handle


def server_stream(
    asked: Message, answered: Message, work: Serving, *, is_bounded: bool = True
) -> Handler:
    """Return the handler of a method that answers one message with many.

    With `is_bounded` the request's time limit ends the stream; without, `work` heeds it.
    """

    async def handle(seat: Seat) -> None:
        codec = connect.codec_of(seat.request.headers.get("content-type", ""), is_stream=True)
        if codec is None:
            await _refuse_type(seat.request, is_stream=True)
            return

        async def serve(stream: Stream) -> None:
            limit_s = connect.timeout_s(seat.request.headers)
            value = await _only(seat.request, codec, asked)
            async with asyncio.timeout(limit_s if is_bounded else None):
                await work(seat, value, stream)

        await Stream(seat, codec, answered).run(serve)

    return handle


def client_stream(asked: Message, answered: Message, work: Taking) -> Handler:
    """Return the handler of a method that answers many messages with one.

    The work ends with its client, also while it takes no message.
    """

    async def handle(seat: Seat) -> None:
        codec = connect.codec_of(seat.request.headers.get("content-type", ""), is_stream=True)
        if codec is None:
            await _refuse_type(seat.request, is_stream=True)
            return

        async def serve(stream: Stream) -> None:
            async with asyncio.timeout(connect.timeout_s(seat.request.headers)):
                async with contextlib.aclosing(_all(seat.request, codec, asked)) as values:
                    found = await cancel_on_disconnect(seat.request, work(seat, values))
            await stream.send(found)

        await Stream(seat, codec, answered).run(serve)

    return handle


async def _only(request: Request, codec: Codec, asked: Message) -> Value:
    """Return the one message of a request. Raises ConnectError."""
    found: Value | None = None
    async with contextlib.aclosing(_all(request, codec, asked)) as values:
        async for value in values:
            if found is not None:
                raise connect.invalid("stream: several messages where one is expected")
            found = value
    if found is None:
        raise connect.invalid("stream: no message where one is expected")
    return found


async def _all(request: Request, codec: Codec, asked: Message) -> AsyncGenerator[Value, None]:
    _check_encoding(request, is_stream=True)
    pieces = request.pieces(request.settings.upload_bytes)
    async with contextlib.aclosing(
        connect.messages(pieces, _MOST_REQUEST_BYTES, request.holding().resize)
    ) as found:
        async for data in found:
            yield codec.decode(asked, data)


def _check_encoding(request: Request, *, is_stream: bool) -> None:
    error = connect.refused_encoding(request.headers, is_stream=is_stream)
    if error is not None:
        raise error


async def _refuse(request: Request, error: ConnectError) -> None:
    await request.refuse(error.as_json(), error.status, {})


async def _refuse_type(request: Request, *, is_stream: bool) -> None:
    given = request.headers.get("content-type", "")[:80]
    error = ConnectError("unimplemented", f"content type {given!r} is not taken by this method")
    headers = {"accept-post": connect.taken(is_stream)}
    await request.refuse(error.as_json(), 415, headers)


class Stream:
    """The messages that answer one request."""

    def __init__(self, seat: Seat, codec: Codec, message: Message) -> None:
        """Send nothing yet: the head goes with the first message."""
        self._sandbox_id = seat.sandbox.id
        self._request = request = seat.request
        self._codec = codec
        self._message = message
        self._quiet_s = connect.keepalive_s(request.headers)

    async def run(self, serve: Callable[[Stream], Awaitable[None]]) -> None:
        """Serve, and end the stream as the protocol wants."""
        error: ConnectError | None = None
        try:
            await serve(self)
        except TimeoutError:
            error = ConnectError("deadline_exceeded", "the time limit of the call is over")
        except ClientGone:
            raise
        except SandboxUnavailable:
            if not self._request.has_answered:
                raise SandboxGone(self._sandbox_id) from None
            error = ConnectError("unavailable", _ENDED)
        except Exception as failure:  # noqa: BLE001 - whatever it is becomes the last envelope
            error = connect_error(failure)
        await self._begin()
        await self._request.write(connect.end_of_stream(error))
        await self._request.end()

    async def _begin(self) -> None:
        if not self._request.has_answered:
            await self._request.start(200, self._codec.media, {"cache-control": "no-store"})

    async def send(self, value: Value) -> None:
        """Send one message; wait while the client takes none. Raises ClientGone."""
        await self._begin()
        data = self._codec.encode(self._message, value)
        await self._request.write(connect.envelope(data))

    async def pass_on(self, values: AsyncGenerator[Value, None], alive: Value) -> None:
        """Send messages as they come, and `alive` while none comes. Raises ClientGone."""
        async with contextlib.aclosing(values):
            while True:
                coming: asyncio.Task[Value | None] = asyncio.ensure_future(_next(values))
                try:
                    while not await self._request.wait(coming, self._quiet_s):
                        await self.send(alive)
                except BaseException:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                    raise
                value = coming.result()
                if value is None:
                    return
                await self.send(value)


async def _next(values: AsyncGenerator[Any, None]) -> Any:  # noqa: ANN401 - what is yielded
    return await anext(values, None)
