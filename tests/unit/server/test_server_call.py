"""A request's own objects: what stays of them once it has been answered."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellwall.server.core.body_budget import BodyBudget
from cellwall.server.core.request import Request
from cellwall.server.core.settings import ServerSettings
from cellwall.server.http.guards import Guard
from cellwall.surface.shared.tasks import Tasks

_BODY = b"x" * 1000


async def _answer(request: Request) -> None:
    assert await request.body(len(_BODY)) == _BODY
    await request.answer({"message": "ok"})


async def _answer_after_waiting(request: Request) -> None:
    """As one that waits for its execution does, and looks after its client meanwhile."""
    assert await request.body(len(_BODY)) == _BODY
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, done.set_result, None)
    assert await request.wait(done)
    await request.answer({"message": "ok"})


async def _answer_in_a_circle(request: Request) -> None:
    await _answer(request)
    request.state = cast("Any", SimpleNamespace(request=request))


async def _serve(app: Any) -> list[dict[str, Any]]:
    nothing = SimpleNamespace(
        tracing=None,
        request=lambda *_: None,
        begun=lambda _: None,
        ended=lambda _: None,
    )
    settings = ServerSettings(allowed_hosts=("*",))
    state = SimpleNamespace(
        settings=settings,
        observer=nothing,
        connections=nothing,
        requests=0,
        tasks=Tasks(),
        tokens=None,
        bodies=BodyBudget(2 * len(_BODY)),
    )
    headers = [(b"host", b"test"), (b"content-length", str(len(_BODY)).encode())]
    scope = {"type": "http", "method": "POST", "path": "/health", "headers": headers}
    said: list[dict[str, Any]] = []

    bodies = [_BODY]

    async def receive() -> dict[str, Any]:
        if not bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop()}

    async def send(message: Any) -> None:
        said.append(message)

    await Guard(cast("Any", state), app)(scope, receive, send)
    await state.tasks.wait_empty()
    assert state.bodies.held_bytes == 0
    return said


def _left(app: Any) -> int:
    """How many calls nobody holds and only the collector would find."""
    gc.collect()
    gc.disable()
    try:
        said = asyncio.run(_serve(app))
        left = sum(type(each) is Request for each in gc.get_objects())
    finally:
        gc.enable()
        gc.collect()
    assert [said[0]["status"], said[-1]["body"]] == [200, b'{"message":"ok"}']
    assert b"x-request-id" in dict(said[0]["headers"])
    return left


@pytest.mark.parametrize("app", [_answer, _answer_after_waiting])
def test_nothing_of_an_answered_request_waits_for_the_collector(app: Any) -> None:
    """Else the bodies of a flood stay until it runs, which is late on a busy machine."""
    assert _left(app) == 0


def test_control_what_is_in_a_circle_is_seen() -> None:
    assert _left(_answer_in_a_circle) == 1
