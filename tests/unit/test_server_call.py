"""A request's own objects: what stays of them once it has been answered."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

from cellwall.server.call import Call
from cellwall.server.guards import Guard
from cellwall.server.settings import ServerSettings

_BODY = b"x" * 1000


async def _answer(call: Call) -> None:
    assert await call.body(len(_BODY)) == _BODY
    await call.answer({"message": "ok"})


async def _answer_in_a_circle(call: Call) -> None:
    await _answer(call)
    call.state = cast("Any", SimpleNamespace(call=call))


async def _serve(app: Any) -> list[dict[str, Any]]:
    nothing = SimpleNamespace(
        tracing=None,
        request=lambda *_: None,
        begun=lambda _: None,
        ended=lambda _: None,
    )
    settings = ServerSettings(allowed_hosts=("*",))
    state = SimpleNamespace(
        settings=settings, watch=nothing, connections=nothing, count=lambda _: None
    )
    headers = [(b"host", b"test"), (b"content-length", str(len(_BODY)).encode())]
    scope = {"type": "http", "method": "POST", "path": "/health", "headers": headers}
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": _BODY}

    async def send(message: Any) -> None:
        said.append(message)

    await Guard(cast("Any", state), app)(scope, receive, send)
    return said


def _left(app: Any) -> int:
    """How many calls nobody holds and only the collector would find."""
    gc.collect()
    gc.disable()
    try:
        said = asyncio.run(_serve(app))
        left = sum(type(each) is Call for each in gc.get_objects())
    finally:
        gc.enable()
        gc.collect()
    assert [said[0]["status"], said[-1]["body"]] == [200, b'{"message":"ok"}']
    assert b"x-request-id" in dict(said[0]["headers"])
    return left


def test_nothing_of_an_answered_request_waits_for_the_collector() -> None:
    """Else the bodies of a flood stay until it runs, which is late on a busy machine."""
    assert _left(_answer) == 0


def test_control_what_is_in_a_circle_is_seen() -> None:
    assert _left(_answer_in_a_circle) == 1
