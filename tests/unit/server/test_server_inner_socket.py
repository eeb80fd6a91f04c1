"""The handshake with a server inside that says nothing: it is not waited for without end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from cellwall.model.errors import PortError
from cellwall.server.port_proxy import websocket as inner_socket
from cellwall.server.port_proxy.websocket import InnerSocket

if TYPE_CHECKING:
    from cellwall.engine.parts.ports import Connection
    from cellwall.server.core.request import Request


class Silent:
    """A connection whose other end takes everything and answers nothing."""

    port = 8000

    async def write(self, data: bytes) -> None:
        pass

    async def read(self, most_bytes: int) -> bytes:
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return await never


class Patient:
    """A call whose client stays."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.scope: dict[str, object] = {"headers": []}


def test_handshake_without_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_socket, "_HANDSHAKE_S", 0.05)

    async def run() -> None:
        request, connection = cast("Request", Patient()), cast("Connection", Silent())
        with pytest.raises(PortError, match="handshake"):
            await InnerSocket(request, connection, b"/").run([])

    asyncio.run(run())
