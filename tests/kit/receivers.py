"""A web server of a few lines that takes webhooks and answers what a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11

Answer = bytes | None


def answer(status: int, *fields: str) -> bytes:
    """Return an answer without a body."""
    return "\r\n".join((f"HTTP/1.1 {status} x", *fields, "content-length: 0", "", "")).encode()


@dataclass(slots=True)
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """Listens on loopback; `says` gets the number of the request and returns the answer's bytes.

    None: it never answers. Empty: it hangs up.
    """

    says: Callable[[int], Answer] = lambda _: answer(200)
    received: list[Received] = field(default_factory=list)
    port: int = 0
    connections: int = 0
    most_open: int = 0
    open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            self.received.append(await _request(reader))
            said = self.says(len(self.received))
            if said is None:
                await reader.read()
            else:
                writer.write(said)
        finally:
            self.open -= 1
            writer.close()

    def url(self, host: str = "127.0.0.1", scheme: str = "http", path: str = "/hook") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


async def _request(reader: asyncio.StreamReader) -> Received:
    http = h11.Connection(h11.SERVER)
    head: h11.Request | None = None
    body = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        else:
            assert isinstance(event, h11.EndOfMessage)
            assert head is not None
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Received(head.method.decode(), head.target.decode(), headers, body)


@asynccontextmanager
async def listening(
    says: Callable[[int], Answer] | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """Listen on a free port of loopback."""
    receiver = Receiver() if says is None else Receiver(says)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
