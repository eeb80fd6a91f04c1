"""The listeners of one sandbox: accept connections and questions, and give each a task.

The invariant: one sandbox takes a bounded part of each turn of the loop, and has a bounded number
of tasks; what comes above that is refused at once and costs its neighbours next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from cellwall.egress.proxy import connection
from cellwall.egress.proxy.naming import dns
from cellwall.egress.proxy.sandbox_network import SandboxNetwork

_PER_TURN = 16
"""Connections accepted, and datagrams read, of one listener in one turn of the loop."""
_MOST_QUESTIONS = 64
"""Most DNS questions of one sandbox that are being answered."""
_DNS_TCP_S = 10.0
_PAUSE_S = 0.05
_CONNECTIONS_PER_S = 300.0
"""Connections of one sandbox that are begun in a second, and as many at once after a pause; each
costs this process, which all sandboxes share, up to a millisecond of processor time."""
_QUESTIONS_PER_S = 1000.0
"""The same of questions, each of which costs a tenth of that."""
_RESET = struct.pack("ii", 1, 0)

Serve = Callable[[SandboxNetwork, socket.socket], Coroutine[Any, Any, None]]


class _Share:
    """What one sandbox may begin: a token bucket that holds a second's worth."""

    def __init__(self, per_second: float) -> None:
        self._per_second = self._left = per_second
        self._at = time.monotonic()

    def take(self) -> bool:
        """Take one; False if there is none now."""
        now = time.monotonic()
        more = (now - self._at) * self._per_second
        self._left = min(self._per_second, self._left + more)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Listening:
    """One sandbox's listeners while they are served."""

    def __init__(self, network: SandboxNetwork, listeners: Sequence[socket.socket]) -> None:
        """Serve now. The order is that of `linux.network.listeners.Listeners`, without absent ones:

        HTTP proxy, DNS over UDP, DNS over TCP, transparent for IPv4, and for IPv6.
        """
        self.network = network
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions = 0
        self._connections_left = _Share(_CONNECTIONS_PER_S)
        self._questions_left = _Share(_QUESTIONS_PER_S)
        self._listeners = list(listeners)
        http_proxy, dns_udp, dns_tcp, *transparent = listeners
        self._loop.add_reader(dns_udp, self._on_datagrams, dns_udp)
        self._loop.add_reader(dns_tcp, self._on_connections, dns_tcp, self._serve_dns)
        self._loop.add_reader(http_proxy, self._on_connections, http_proxy, connection.serve_proxy)
        for each in transparent:
            self._loop.add_reader(each, self._on_connections, each, connection.serve_direct)

    async def close(self) -> None:
        """Stop: no listener is left open here, and no connection."""
        for each in self._listeners:
            self._loop.remove_reader(each)
            each.close()
        await self.network.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "a connection's task failed", "exception": error}
            )

    def _on_connections(self, listener: socket.socket, serve: Serve) -> None:
        for _ in range(_PER_TURN):
            if not self._connections_left.take():
                self._pause(listener, serve)
                return
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # this process has no descriptor left; the programs wait
                self._pause(listener, serve)
                return
            if len(self._tasks) >= self.network.policy.connections + _MOST_QUESTIONS:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                accepted.close()
                most = self.network.policy.connections
                self.network.note_refusal(
                    "", 0, "direct", f"the sandbox has {most} connections open, its limit"
                )
                continue
            accepted.setblocking(False)
            # Otherwise the second of two small answers waits 40 ms for the first one's receipt.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(serve(self.network, accepted))

    def _pause(self, listener: socket.socket, serve: Serve) -> None:
        """Accept nothing for a moment: connections wait in the kernel, which refuses a flood."""
        self._loop.remove_reader(listener)
        self._loop.call_later(_PAUSE_S, self._accept_again, listener, serve)

    def _accept_again(self, listener: socket.socket, serve: Serve) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener, self._on_connections, listener, serve)

    def _on_datagrams(self, listener: socket.socket) -> None:
        for _ in range(_PER_TURN):
            try:
                question, peer = listener.recvfrom(dns.MOST_BYTES)
            except (BlockingIOError, ConnectionRefusedError):
                return
            # What is above that is dropped: a resolver asks again.
            if not self._questions_left.take():
                continue
            if (reply := dns.told(self.network, question)) is not None:  # without a task
                _send(listener, reply, peer)
            elif self._questions < _MOST_QUESTIONS:
                self._questions += 1
                self._spawn(self._answer_datagram(listener, question, peer))

    async def _answer_datagram(self, listener: socket.socket, question: bytes, peer: Any) -> None:  # noqa: ANN401 - an address
        try:
            reply = await dns.answer(self.network, question)
            if reply is not None:
                _send(listener, reply, peer)
        finally:
            self._questions -= 1

    async def _serve_dns(self, network: SandboxNetwork, accepted: socket.socket) -> None:
        """Answer questions over TCP, each with its length before it (RFC 7766)."""
        with accepted, contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_DNS_TCP_S):
                while (head := await _exactly(self._loop, accepted, 2)) is not None:
                    size = int.from_bytes(head, "big")
                    question = await _exactly(self._loop, accepted, size)
                    if question is None or size > dns.MOST_BYTES:
                        return
                    reply = await dns.answer(network, question)
                    if reply is None:
                        return
                    await self._loop.sock_sendall(accepted, len(reply).to_bytes(2, "big") + reply)


def _send(listener: socket.socket, reply: bytes, peer: Any) -> None:  # noqa: ANN401 - an address
    with contextlib.suppress(OSError):  # the program has gone, or does not read
        listener.sendto(reply, peer)


async def _exactly(loop: asyncio.AbstractEventLoop, held: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        piece = await loop.sock_recv(held, size - len(data))
        if not piece:
            return None
        data += piece
    return data
