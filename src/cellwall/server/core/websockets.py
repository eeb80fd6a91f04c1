"""The server side of a WebSocket: bounded messages, bounded waiting, from accept to close.

The messages are defined by `routes.terminal` and `routes.ports`. The invariant: messages that the
client does not take are not kept: sending waits for the client, for `stall_s` seconds at most, then
the connection is cut.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cellwall.server.core.request import ClientGone
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.server.core.request import Request

BAD_MESSAGE = 1008


class Socket:
    """One WebSocket connection."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def accept(self, subprotocol: str | None = None) -> None:
        """Accept the upgrade."""
        message = await self._request.receive()
        if message["type"] != "websocket.connect":
            raise ClientGone
        self._request.has_answered = True
        await self._request.send({"type": "websocket.accept", "subprotocol": subprotocol})

    async def receive(self) -> str | bytes:
        """Return the next message; `ClientGone` when there is none any more."""
        message = await self._request.receive()
        if message["type"] != "websocket.receive":
            raise ClientGone
        text = message.get("text")
        return text if text is not None else bytes(message["bytes"])

    async def send(self, data: str | bytes) -> None:
        """Send one message, and wait until the transport takes it."""
        key = "text" if isinstance(data, str) else "bytes"
        try:
            async with asyncio.timeout(self._request.settings.stall_s):
                await self._request.send({"type": "websocket.send", key: data})
        except TimeoutError:
            self._request.abort()
            raise ClientGone from None

    async def send_json(self, value: Mapping[str, Any]) -> None:
        """Send one object as text."""
        await self.send(one_line(value))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Send the close frame."""
        await self._request.send({"type": "websocket.close", "code": code, "reason": reason[:100]})


def wanted_subprotocol(request: Request) -> str | None:
    """Return `cellwall` if the client offers it: a browser that sends its key there needs it."""
    offered = request.headers.get("sec-websocket-protocol", "")
    return "cellwall" if "cellwall" in [each.strip() for each in offered.split(",")] else None
