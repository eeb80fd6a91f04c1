"""Calls to tools over a connection that breaks: each function runs once, whatever is lost."""

from __future__ import annotations

import asyncio
import json

from cellwall import ToolBox
from cellwall.client.connection.address import address_of
from cellwall.client.connection.tool_calls import ToolCalls
from cellwall.client.connection.transport import Transport

_CALL = {"type": "call", "call": 1, "tool": "order", "arguments": {}, "arguments_bytes": 2}
_BUSY = {"error": {"code": "store_busy", "message": "not now", "request_id": "r"}}


class _Server:
    """Shows the same call on each connection and takes no answer to it; the second one ends."""

    def __init__(self) -> None:
        self.streams = 0
        self.answers = 0
        self.refused = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
        except asyncio.IncompleteReadError:  # one that it had opened ahead
            writer.close()
            return
        if head.startswith(b"post"):
            size = int(head.partition(b"content-length:")[2].split(None, 1)[0])
            await reader.readexactly(size)
            self._say(writer, b"503 Service Unavailable", json.dumps(_BUSY).encode())
            self.answers += 1
            if self.answers == 2:  # the result, and word that it was not taken
                self.refused.set()
        else:
            self.streams += 1
            lines = json.dumps(_CALL).encode() + b"\n"
            if self.streams == 1:  # announced longer than it is: the connection breaks
                self._say(writer, b"200 OK", lines, missing=1)
                await self.refused.wait()
            else:
                self._say(writer, b"200 OK", lines + b'{"type":"end"}\n')
        writer.close()

    @staticmethod
    def _say(writer: asyncio.StreamWriter, status: bytes, body: bytes, *, missing: int = 0) -> None:
        length = len(body) + missing
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, length, body))


def test_call_whose_answer_was_lost_is_not_done_again() -> None:
    ran = []

    async def order() -> str:
        ran.append(1)
        return "ordered"

    async def work() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        transport = Transport(address_of(f"http://127.0.0.1:{port}", "k" * 32, {}), 5)
        try:
            async with asyncio.timeout(20):
                await ToolCalls(transport, ToolBox({"order": order}), "/executions/e").serve()
        finally:
            await transport.aclose()
            listening.close()

    server = _Server()
    asyncio.run(work())
    assert (server.streams, server.answers, ran) == (2, 2, [1])
