"""A WebSocket to a server inside a sandbox, over a connection to its port.

Headers are filtered by `headers`. The other side is hostile: `websockets` parses it without IO of
its own, with a cap on messages. The invariant: a message is passed whole or not at all, and each
waits for the one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from cellwall.model.errors import PortError
from cellwall.server.core.disconnects import cancel_on_disconnect
from cellwall.server.core.errors import HttpError
from cellwall.server.core.request import ClientGone
from cellwall.server.core.websockets import Socket

if TYPE_CHECKING:
    from websockets.typing import Subprotocol

    from cellwall.engine.parts.ports import Connection
    from cellwall.server.core.request import Request
    from cellwall.server.port_proxy.headers import Headers

_STEP_BYTES = 64 * 1024
_MESSAGE_BYTES = 1024 * 1024
_HANDSHAKE_S = 15.0
"""Seconds from the connection to the inside's answer, which needs no computation."""
_OWN = {"connection", "upgrade"}


class InnerSocket:
    """The client's WebSocket joined to one inside."""

    def __init__(self, request: Request, connection: Connection, target: bytes) -> None:
        self._request = request
        self._connection = connection
        offered = [
            each.strip()
            for each in request.headers.get("sec-websocket-protocol", "").split(",")
            if each.strip() and not each.strip().startswith("key.")
        ]
        subprotocols: list[Subprotocol] | None = offered or None  # type: ignore[assignment]
        path = target.decode("ascii")
        self._inner = ClientProtocol(
            parse_uri(f"ws://localhost:{connection.port}{path}"),
            subprotocols=subprotocols,
            max_size=_MESSAGE_BYTES,
        )
        self._outer = Socket(request)
        self._message = bytearray()
        self._is_text = False
        self._writing = asyncio.Lock()

    async def run(self, headers: Headers) -> None:
        """Shake hands on both sides, then pass messages until one side ends.

        `headers` are the filtered ones of the client. Raises `ClientGone`, 502, `PortError`.
        """
        await cancel_on_disconnect(self._request, self._join(headers))

    async def _join(self, headers: Headers) -> None:
        await self._shake_hands_in_time(headers)
        await self._outer.accept(self._inner.subprotocol)
        outward = asyncio.ensure_future(self._pass_out())
        inward = asyncio.ensure_future(self._pass_in())
        try:
            async with asyncio.timeout(self._request.settings.socket_s):
                done, _ = await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except TimeoutError:
            await self._outer.close(1001, "its whole life is over")
        finally:
            outward.cancel()
            inward.cancel()
            await asyncio.gather(outward, inward, return_exceptions=True)

    async def _shake_hands_in_time(self, headers: Headers) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await self._shake_hands(headers)
        except TimeoutError:
            raise PortError(
                f"port {self._connection.port}: no answer to the handshake in {_HANDSHAKE_S:g} s",
                reason="timeout",
                remedy="see whether what listens there takes WebSockets",
            ) from None

    async def _shake_hands(self, headers: Headers) -> None:
        request = self._inner.connect()
        for name, value in headers:
            word = name.decode("latin-1")
            if word == "Host":
                del request.headers[word]  # it has one of its own, and two would be wrong
            if word not in _OWN:
                request.headers[word] = value.decode("latin-1")
        self._inner.send_request(request)
        await self._flush()
        while self._inner.state is State.CONNECTING:
            data = await self._connection.read(_STEP_BYTES)
            if data:
                self._inner.receive_data(data)
            else:
                self._inner.receive_eof()
            if self._inner.handshake_exc is not None or not data:
                break
        if self._inner.state is not State.OPEN:
            raise _no_socket(self._connection.port, self._inner.handshake_exc)

    async def _flush(self) -> None:
        # Two tasks write: one passes messages on, the other answers pings.
        async with self._writing:
            for data in self._inner.data_to_send():
                if data:
                    await self._connection.write(data)

    async def _pass_out(self) -> None:
        while True:
            for event in self._inner.events_received():
                if isinstance(event, Frame):
                    await self._take(event)
            if self._inner.state is not State.OPEN:
                await self._pass_close()
                return
            await self._flush()
            data = await self._connection.read(_STEP_BYTES)
            if data:
                self._inner.receive_data(data)
            else:
                self._inner.receive_eof()

    async def _pass_close(self) -> None:
        said = self._inner.close_rcvd
        if said is None:  # the connection or the protocol broke
            await self._outer.close(1011)
        elif said.code == CloseCode.NO_STATUS_RCVD:  # this code means "no code" and is never sent
            await self._outer.close(1000)
        else:
            await self._outer.close(said.code, said.reason)
        with contextlib.suppress(PortError):  # the inside need not wait for the answering close
            await self._flush()

    async def _take(self, frame: Frame) -> None:
        if frame.opcode in {Opcode.TEXT, Opcode.BINARY}:
            self._is_text = frame.opcode is Opcode.TEXT
            self._message = bytearray(frame.data)
        elif frame.opcode is Opcode.CONT:
            self._message += frame.data
        else:
            return
        if len(self._message) > _MESSAGE_BYTES:
            await self._outer.close(1009, "a message from inside is too long")
            raise ClientGone
        if frame.fin:
            whole = bytes(self._message)
            self._message = bytearray()
            await self._outer.send(whole.decode("utf-8", "replace") if self._is_text else whole)

    async def _pass_in(self) -> None:
        try:
            while True:
                message = await self._outer.receive()
                if self._inner.state is not State.OPEN:
                    return
                if isinstance(message, str):
                    self._inner.send_text(message.encode())
                else:
                    self._inner.send_binary(message)
                await self._flush()
        except ClientGone:
            if self._inner.state is State.OPEN:
                self._inner.send_close(1001)
                await self._flush()


def _no_socket(port: int, error: Exception | None) -> HttpError:
    is_http = isinstance(error, InvalidHandshake)
    return HttpError(
        502,
        "port_protocol",
        f"port {port}: what answers there does not take WebSockets"
        + ("" if is_http else " or HTTP/1.1"),
        remedy="look at what the server inside answers",
    )
