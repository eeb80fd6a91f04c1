"""Inner WebSockets: what each end learns of the other, over an application of a few lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

import pytest
from websockets.exceptions import ConnectionClosedError

from cellwall.apps.inner.sockets import InnerSocket, scope_of
from cellwall.server.core import disconnects
from cellwall.server.core.request import ClientGone, Request
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.apps.inner.sockets import Application, Message, Receive, Send

WAIT_S = 5.0


def _run(application: object, client: Callable[[InnerSocket], Awaitable[None]]) -> None:
    """Connect a client to an application; the test ends when both have."""

    async def both() -> None:
        tasks, socket = Tasks(), InnerSocket()
        await socket.open(cast("Application", application), {}, scope_of("/", b""), tasks)
        await client(socket)
        await tasks.wait_empty()
        assert tasks.failed == 0

    asyncio.run(asyncio.wait_for(both(), WAIT_S))


async def _work_while_there(
    scope: Message, receive: Receive, send: Send, work: Coroutine[Any, Any, None]
) -> None:
    request = Request(scope, receive, send, {}, "r", None)
    await disconnects.cancel_on_disconnect(request, work)


async def _never() -> None:
    await asyncio.Event().wait()


def test_work_that_reads_nothing_goes_on_while_its_caller_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disconnects, "_LOOK_S", 0.01)
    looks: list[bool] = []
    looked = disconnects.has_left

    async def application(_: object, scope: Message, receive: Receive, send: Send) -> None:
        enough = asyncio.Event()

        def counted(request: Request) -> bool:
            looks.append(looked(request))
            if len(looks) == 3:
                enough.set()
            return looks[-1]

        async def work() -> None:
            await enough.wait()

        monkeypatch.setattr(disconnects, "has_left", counted)
        await send({"type": "websocket.accept"})
        await _work_while_there(scope, receive, send, work())
        await send({"type": "websocket.send", "text": "done"})

    async def client(socket: InnerSocket) -> None:
        assert await socket.recv() == "done"

    _run(application, client)
    assert looks == [False] * 3


def test_work_that_reads_nothing_ends_when_its_caller_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disconnects, "_LOOK_S", 0.01)
    ends: list[str] = []

    async def application(_: object, scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        try:
            await _work_while_there(scope, receive, send, _never())
        except ClientGone:
            ends.append("its caller has left")

    async def client(socket: InnerSocket) -> None:
        await socket.close()

    _run(application, client)
    assert ends == ["its caller has left"]


def test_a_sender_whose_server_ends_is_told_instead_of_waiting() -> None:
    ending = asyncio.Event()

    async def application(_: object, __: Message, ___: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await ending.wait()

    async def client(socket: InnerSocket) -> None:
        async def send_all() -> None:
            while True:
                await socket.send(b"x")

        sending = asyncio.ensure_future(send_all())
        done, _ = await asyncio.wait({sending}, timeout=0.1)
        assert not done  # the queue is full, and the server takes nothing
        ending.set()
        with pytest.raises(ConnectionClosedError):
            await sending

    _run(application, client)
