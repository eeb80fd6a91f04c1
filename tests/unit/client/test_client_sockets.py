"""The SDK's WebSockets: a redirect is a refusal, so the key goes to the given address alone."""

from __future__ import annotations

import asyncio

import pytest

from cellwall.client.connection.address import address_of
from cellwall.client.connection.transport import Transport
from cellwall.model.errors import ServerUnreachable

KEY = "k" * 43
HOST = "127.0.0.1"


def test_redirect_is_not_followed_with_the_key() -> None:
    heads: dict[str, bytes] = {}

    async def run() -> None:
        async def trap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads["trap"] = await reader.readuntil(b"\r\n\r\n")
            writer.close()

        other = await asyncio.start_server(trap, HOST, 0)
        away = f"http://{HOST}:{other.sockets[0].getsockname()[1]}/"

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads["gateway"] = await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 302 Found\r\nlocation: {away}\r\n".encode())
            writer.write(b"content-length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        gateway = await asyncio.start_server(redirect, HOST, 0)
        port = gateway.sockets[0].getsockname()[1]
        transport = Transport(address_of(f"http://{HOST}:{port}", KEY, {}), 5.0)
        try:
            with pytest.raises(ServerUnreachable, match="302"):
                await transport.socket("/sandboxes/one/terminal", {})
        finally:
            await transport.aclose()
            for each in (other, gateway):
                each.close()
                await each.wait_closed()

    asyncio.run(run())
    assert KEY.encode() in heads["gateway"]  # the control
    assert "trap" not in heads
