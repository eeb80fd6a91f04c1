"""HTTP/1.1 with a client inside a sandbox, on one accepted connection.

The proxy accepts and says whose policy it is; `broker` decides. Not HTTP/2, which has no reason
phrases. The invariant: a client holds one connection's worth of memory and no time of another one:
its head is bounded in size and time, what it sends besides is read to a bound and dropped, and a
body is written as fast as it reads, or the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import h11

from cellwall.egress.packages.broker import Broker, BrokerAnswer, BrokerRequest
from cellwall.egress.packages.cache import CachedFile
from cellwall.egress.packages.downloads import Broken, Following
from cellwall.model.packages import PackagePolicy

_HEAD_BYTES = 16 * 1024
_BODY_BYTES = 256 * 1024
"""Bytes of a body that are read: npm reports what it installs, which is not needed here."""
_PIECE_BYTES = 256 * 1024
_COUNTED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ServingTimes:
    """Seconds that a client may take."""

    head_s: float = 10.0
    """From the first byte of a request to the end of its head and body."""
    idle_s: float = 60.0
    """Between two requests."""
    stuck_s: float = 30.0
    """Until it has taken the next piece of an answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request, as it is counted and audited."""

    request: BrokerRequest
    status: int
    reason: str
    """The sentence of a refusal, or OK."""
    sent_bytes: int
    """Bytes of the body that went out."""
    is_whole: bool


Count = Callable[[int], Awaitable[None]]


async def _uncounted(_size: int) -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a sandbox is served."""

    policy_of: Callable[[], PackagePolicy]
    """Asked for each request."""
    turn: AbstractAsyncContextManager[object] = field(default_factory=contextlib.nullcontext)
    """Entered for each request, from its head to the end of its answer."""
    on_served: Callable[[Served], None] = lambda _served: None
    count_sent: Count = _uncounted
    """Awaited with the number of bytes that came from the client; what it raises ends the
    connection."""
    count_received: Count = _uncounted
    """The same for bytes that go to the client, before they go."""


async def serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    broker: Broker,
    terms: Terms,
    times: ServingTimes | None = None,
) -> None:
    """Answer one connection's requests until it ends; closes it. Raises what `terms` raise."""
    connection = _Connection(reader, writer, terms, times or ServingTimes())
    try:
        while (request := await connection.request()) is not None:
            async with terms.turn:
                answer = await broker.answer(request, terms.policy_of())
                try:
                    await connection.send(request, answer)
                finally:
                    answer.close()
                    terms.on_served(connection.served(request, answer))
            if not connection.is_reusable():
                break
    except (OSError, TimeoutError, Broken, h11.ProtocolError):
        pass  # it went, it is stuck, it does not speak HTTP; or its file did not come whole
    finally:
        if connection.is_cut:
            writer.transport.abort()
        else:
            writer.close()


class _Connection:
    """One client's connection and the state of its protocol."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        terms: Terms,
        times: ServingTimes,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._terms = terms
        self._times = times
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self.is_cut = False
        """Whether an answer stopped in its middle, which a client must not take for its end."""
        self._sent = 0
        self._uncounted = 0
        """Bytes that came from the client and are not counted yet."""

    def served(self, request: BrokerRequest, answer: BrokerAnswer) -> Served:
        """Return what became of the last request."""
        return Served(request, answer.status, answer.reason, self._sent, not self.is_cut)

    def is_reusable(self) -> bool:
        """Make ready for the next request; False: there will be none."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def request(self) -> BrokerRequest | None:
        """Return the next request, its body read and dropped; None: the client has gone.

        Counting waits where the client's rate is spent, which is no time of the client's.
        """
        found = await self._next()
        size, self._uncounted = self._uncounted, 0
        await self._terms.count_sent(size)
        return found

    async def _next(self) -> BrokerRequest | None:
        if not self._http.trailing_data[0]:
            async with asyncio.timeout(self._times.idle_s):
                received = await self._read()
            if not received:
                return None
            self._http.receive_data(received)
        try:
            async with asyncio.timeout(self._times.head_s):
                return await self._read_request()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, "the request is not HTTP/1.1")
            raise

    async def _read(self) -> bytes:
        received = await self._reader.read(_HEAD_BYTES)
        self._uncounted += len(received)
        return received

    async def _read_request(self) -> BrokerRequest | None:
        found, sent = None, 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._read())
            elif isinstance(event, h11.Request):
                if event.http_version != b"1.1":
                    await self._refuse(505, "this is HTTP/1.1 only")
                    return None
                found = _request_of(event)
            elif isinstance(event, h11.Data):
                sent += len(event.data)
                if sent > _BODY_BYTES:
                    await self._refuse(413, "packages can be fetched here, and nothing else")
                    return None
            elif isinstance(event, h11.EndOfMessage):
                return found
            else:
                return None  # closed, or another protocol

    async def _refuse(self, status: int, reason: str) -> None:
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            fields = [("Content-Length", "0"), ("Connection", "close")]
            response = h11.Response(status_code=status, reason=reason.encode(), headers=fields)
            await self._write(self._http.send(response))
            await self._write(self._http.send(h11.EndOfMessage()))

    async def send(self, request: BrokerRequest, answer: BrokerAnswer) -> None:
        """Write the whole answer, or leave the connection cut."""
        self.is_cut, self._sent = True, 0
        length = answer.length
        coding = (
            ("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))
        )
        response = h11.Response(
            status_code=answer.status,
            reason=answer.reason.encode("ascii"),
            headers=[*answer.headers, coding],
        )
        await self._write(self._http.send(response))
        if request.method != "HEAD":
            async for piece in _pieces(answer):
                for part in self._http.send_with_data_passthrough(h11.Data(data=piece)) or ():
                    await self._write(part)
                self._sent += len(piece)
        await self._write(self._http.send(h11.EndOfMessage()))
        self.is_cut = False

    async def _write(self, part: bytes | None) -> None:
        left = memoryview(part or b"")
        while left:
            # Small pieces: one that waits for the client's rate must not look like silence.
            piece, left = left[:_COUNTED_BYTES], left[_COUNTED_BYTES:]
            await self._terms.count_received(len(piece))
            self._writer.write(piece)
            async with asyncio.timeout(self._times.stuck_s):
                await self._writer.drain()


def _request_of(event: h11.Request) -> BrokerRequest:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
    return BrokerRequest(event.method.decode("ascii"), event.target.decode("latin-1"), headers)


async def _pieces(answer: BrokerAnswer) -> AsyncIterator[bytes]:
    body = answer.body
    if isinstance(body, bytes):
        if body:
            yield body
    elif isinstance(body, CachedFile):
        offset = 0
        while offset < body.length:
            piece = os.pread(body.fd, min(_PIECE_BYTES, body.length - offset), offset)
            if not piece:
                raise Broken("the cached file has become shorter")
            offset += len(piece)
            yield piece
    elif isinstance(body, Following):
        async for piece in body.pieces():
            yield piece
