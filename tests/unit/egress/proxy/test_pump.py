"""One direction of a relay, between pairs of sockets: all bytes in order, and every kind of end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Iterator

import pytest

from cellwall.egress.proxy import pump

_LONG = 8 << 20


@contextlib.contextmanager
def pairs() -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    """Yield a program, the proxy's end to it, the proxy's end to a server, and the server."""
    with contextlib.ExitStack() as stack:
        program, inner = map(stack.enter_context, socket.socketpair())
        outer, server = map(stack.enter_context, socket.socketpair())
        for each in (program, inner, outer, server):
            each.setblocking(False)
        yield program, inner, outer, server


@contextlib.contextmanager
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection on loopback."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        caller = stack.enter_context(socket.create_connection(listener.getsockname()))
        accepted = stack.enter_context(listener.accept()[0])
        for each in (caller, accepted):
            each.setblocking(False)
        yield caller, accepted


class Watched(pump.Pump):
    """One that says when it waits for its target, and for nothing besides."""

    still: asyncio.Event

    def _on_look(self) -> None:
        super()._on_look()
        if self._is_writing and self._look is None:
            self.still.set()


def free(_size: int) -> float:
    return 0.0


async def everything(held: socket.socket) -> bytes:
    data = b""
    while piece := await asyncio.get_running_loop().sock_recv(held, 1 << 20):
        data += piece
    return data


async def first(held: socket.socket, size: int) -> bytes:
    """Read so many bytes; return the last ones that came at once."""
    piece = b""
    while size:
        piece = await asyncio.get_running_loop().sock_recv(held, min(size, 1 << 20))
        size -= len(piece)
    return piece


def test_long_stream_and_its_end_arrive_and_the_other_direction_goes_on() -> None:
    """Beyond half a MiB the kernel moves it; the reader is slower than the writer all the time."""
    sent = os.urandom(_LONG)
    counted = [0, 0]

    def note(which: int, size: int) -> float:
        counted[which] += size
        return 0.0

    async def main() -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        with pairs() as (program, inner, outer, server):
            running = asyncio.ensure_future(
                pump.run(
                    (inner, outer, lambda size: note(0, size)),
                    (outer, inner, lambda size: note(1, size)),
                )
            )
            reading = asyncio.ensure_future(everything(server))
            await loop.sock_sendall(program, sent)
            program.shutdown(socket.SHUT_WR)
            found = await reading
            assert not running.done()
            await loop.sock_sendall(server, b"and back")
            server.shutdown(socket.SHUT_WR)
            back = await everything(program)
            await running
            return found, back

    found, back = asyncio.run(main())
    assert found == sent
    assert back == b"and back"
    assert counted == [_LONG, 8]


def test_last_bytes_of_a_long_stream_pass_though_it_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long stream is taken in large pieces; what is less than one waits for a look, not for ever.

    The control is the kernel's own word: the same bytes are not announced at a socket that waits
    for so many.
    """
    monkeypatch.setattr(pump, "_GATHERED_AFTER", 1 << 20)  # a busy machine makes pauses
    sent, rest = bytes(4 * _LONG), b"the rest"
    waited_for = set[int]()

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        with tcp_pair() as (program, inner), tcp_pair() as (outer, server):

            def note(_size: int) -> float:
                waited_for.add(inner.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))
                return 0.0

            running = asyncio.ensure_future(pump.run((inner, outer, note)))
            writing = asyncio.ensure_future(loop.sock_sendall(program, sent))
            await first(server, len(sent))
            await writing
            await loop.sock_sendall(program, rest)
            found = await first(server, len(rest))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return found

    assert asyncio.run(asyncio.wait_for(main(), 20)) == rest
    assert waited_for == {1, pump._GATHERED}
    with tcp_pair() as (program, inner):
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, pump._GATHERED)
        program.send(rest)
        assert select.select([inner], [], [], 0.1) == ([], [], [])


def test_long_stream_whose_target_does_not_read_costs_no_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No timer is set while it stands still; when the target reads again, all of it arrives."""
    monkeypatch.setattr(pump, "_GATHERED_AFTER", 1 << 20)
    sent = bytes(8 * _LONG)  # more than both sockets' buffers hold

    async def main() -> int:
        loop = asyncio.get_running_loop()
        with tcp_pair() as (program, inner), tcp_pair() as (outer, server):
            ended = loop.create_future()
            made = Watched(inner, outer, free, ended.set_result)
            made.still = asyncio.Event()
            made.begin()
            writing = asyncio.ensure_future(loop.sock_sendall(program, sent))
            await made.still.wait()
            assert made._is_gathering
            await first(server, len(sent))
            await writing
            program.shutdown(socket.SHUT_WR)
            assert await ended is None
            return len(await everything(server))

    assert asyncio.run(asyncio.wait_for(main(), 20)) == 0


def test_target_that_does_not_read_holds_up_the_source() -> None:
    async def main() -> int:
        with pairs() as (program, inner, outer, _server):
            running = asyncio.ensure_future(pump.run((inner, outer, free)))
            sent = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while True:
                        await asyncio.get_running_loop().sock_sendall(program, bytes(65536))
                        sent += 65536
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return sent

    before = set(os.listdir("/proc/self/fd"))
    assert 0 < asyncio.run(main()) < 8 << 20
    assert set(os.listdir("/proc/self/fd")) <= before  # the pipe, too


def test_limit_ends_both_directions_and_nothing_of_its_piece_passes() -> None:
    class Full(Exception):
        pass

    def note(_size: int) -> float:
        raise Full

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        with pairs() as (program, inner, outer, server):
            running = asyncio.ensure_future(pump.run((inner, outer, note), (outer, inner, free)))
            await loop.sock_sendall(program, b"too much")
            with pytest.raises(Full):
                await running
            outer.close()
            return await everything(server)

    assert asyncio.run(main()) == b""


def test_reset_of_a_side_is_an_error() -> None:
    async def main() -> None:
        with pairs() as (program, inner, outer, server):
            running = asyncio.ensure_future(pump.run((inner, outer, free), (outer, inner, free)))
            server.close()
            await asyncio.get_running_loop().sock_sendall(program, b"to a closed one")
            with pytest.raises(ConnectionError):
                await running

    asyncio.run(main())


def test_rate_holds_bytes_back() -> None:
    """The piece is passed on when the wait is over, and not before."""
    owed = [0.2, 0.0]

    async def main() -> tuple[bool, bytes]:
        loop = asyncio.get_running_loop()
        with pairs() as (program, inner, outer, server):
            running = asyncio.ensure_future(pump.run((inner, outer, lambda _: owed.pop(0))))
            begun = loop.time()
            await loop.sock_sendall(program, b"slowly")
            first = await loop.sock_recv(server, 100)
            was_late = loop.time() - begun >= 0.19
            await loop.sock_sendall(program, b", then at once")
            program.shutdown(socket.SHUT_WR)
            owed.append(0.0)
            rest = await everything(server)
            await running
            return was_late, first + rest

    assert asyncio.run(main()) == (True, b"slowly, then at once")
