"""Servers inside that misbehave towards who connects from outside. This process is the witness."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cellwall import AsyncSandbox, CapacityError, PortError
from cellwall.engine.parts.ports import MOST_CONNECTIONS
from kit.arena import Arena, fresh_peak_kib, peak_kib

pytestmark = pytest.mark.attack

_HOST_MAY_GROW_KIB = 8 * 1024
Attack = Callable[[AsyncSandbox, int], Awaitable[None]]

_SERVER = """
import socket, struct, threading
server = socket.create_server(("127.0.0.1", 0), backlog=256)
kept = []
flood = bytes(1 << 26)
print(server.getsockname()[1], flush=True)
while True:
    line = server.accept()[0]
"""
_FLOOD = "    threading.Thread(target=line.sendall, args=(flood,), daemon=True).start()\n"
_DEAF = "    kept.append(line)\n"
_RESET = "    line.setsockopt(1, 13, struct.pack('ii', 1, 0)); line.close()\n"
_COUNT = (
    "    size = sum(map(len, iter(lambda: line.recv(65536), b'')))\n"
    "    line.sendall(str(size).encode()); line.close()\n"
)


def beside_a_neighbour(arena: Arena, behaviour: str, attack: Attack) -> None:
    """Run `attack` against a server; what it costs the host is bounded, nothing is left behind."""

    async def both() -> None:
        async with arena.sandbox() as sandbox, serving(sandbox, _SERVER + behaviour) as port:
            neighbour = asyncio.ensure_future(arena.engine.run("print(1)", timeout=20))
            await attack(sandbox, port)
            assert (await neighbour).stdout == "1\n"
            assert (await sandbox.run("6 * 7")).text == "42"
            assert sandbox.live.channel._stray == 0

    before = fresh_peak_kib()
    with arena.leaving_nothing():
        arena.do(both())
    assert peak_kib() - before <= _HOST_MAY_GROW_KIB


@contextlib.asynccontextmanager
async def serving(sandbox: AsyncSandbox, code: str) -> AsyncIterator[int]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_stdout(text: str) -> None:
        port.set_result(int(text))

    server = await sandbox.commands.start(["python3", "-c", code], on_stdout=on_stdout)
    yield await asyncio.wait_for(port, 20)
    await server.kill()
    await server.wait()


def test_download_of_64_megabytes_is_flat_and_whole(arena: Arena) -> None:
    async def attack(sandbox: AsyncSandbox, port: int) -> None:
        size = 0
        async with await sandbox.ports.connect(port) as line:
            while size < 1 << 26:
                size += len(await line.read())

    beside_a_neighbour(arena, _FLOOD, attack)


def test_flood_that_nobody_reads_stops_its_server_only(arena: Arena) -> None:
    async def attack(sandbox: AsyncSandbox, port: int) -> None:
        unread = [await sandbox.ports.connect(port) for _ in range(8)]
        async with await sandbox.ports.connect(port) as line:  # the control: others flow on
            size = 0
            while size < 4 << 20:
                size += len(await line.read())
        held = [len(line._stream._buffer) for line in unread]
        assert max(held) > 0
        assert max(held) <= 256 << 10
        for line in unread:
            line.abort()

    beside_a_neighbour(arena, _FLOOD, attack)


def test_upload_that_nobody_reads_is_bounded(arena: Arena) -> None:
    async def attack(sandbox: AsyncSandbox, port: int) -> None:
        line = await sandbox.ports.connect(port)
        before = sandbox.live.readings().memory_bytes
        writing = asyncio.ensure_future(line.write(bytes(1 << 30)))
        done, _ = await asyncio.wait({writing}, timeout=1)
        assert not done
        assert sandbox.live.readings().memory_bytes - before < 16 << 20
        line.abort()
        with pytest.raises(PortError):
            await asyncio.wait_for(writing, 10)

    beside_a_neighbour(arena, _DEAF, attack)


def test_upload_that_is_read_arrives_whole(arena: Arena) -> None:
    async def attack(sandbox: AsyncSandbox, port: int) -> None:
        async with await sandbox.ports.connect(port) as line:
            for _ in range(1 << 6):  # in pieces: one of all would be this process's own growth
                await line.write(bytes(1 << 20))
            await line.write_eof()
            assert b"".join([piece async for piece in line]) == b"%d" % (1 << 26)

    beside_a_neighbour(arena, _COUNT, attack)


def test_server_that_resets_everybody_wears_nothing_out(arena: Arena) -> None:
    async def attack(sandbox: AsyncSandbox, port: int) -> None:
        resets = 0
        for _ in range(4 * MOST_CONNECTIONS):
            with contextlib.suppress(PortError):
                async with await sandbox.ports.connect(port) as line:
                    await line.read()
                continue
            resets += 1
        assert resets > 0

    beside_a_neighbour(arena, _RESET, attack)


def test_connections_are_bounded_and_places_come_back(arena: Arena) -> None:
    async def attack(sandbox: AsyncSandbox, port: int) -> None:
        lines = [await sandbox.ports.connect(port) for _ in range(MOST_CONNECTIONS)]
        with pytest.raises(CapacityError):
            await sandbox.ports.connect(port)
        for line in lines:
            line.abort()
        await sandbox.files.exists("x")  # init answers in order: it has let go of them by now
        async with await sandbox.ports.connect(port):
            pass

    beside_a_neighbour(arena, _DEAF, attack)


def test_port_of_the_host_is_not_one_of_the_sandbox(arena: Arena) -> None:
    async def attack(sandbox: AsyncSandbox, _port: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with pytest.raises(PortError) as caught:
                await sandbox.ports.connect(port)
            assert caught.value.reason == "refused"
            assert port not in [found.port for found in await sandbox.ports.list()]
            socket.create_connection(("127.0.0.1", port)).close()  # the control: it is there

    beside_a_neighbour(arena, _DEAF, attack)
