"""Keys of requests at a gateway that is alone: no second node begins what a first one may have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from cellwall.cluster.gateway.replays import Replays, Use
from cellwall.cluster.gateway.wire.heads import RequestHead
from cellwall.server.auth.keys import Principal


class _Head:
    """A request with a key, as far as its use looks at it."""

    def first(self, name: bytes) -> str:
        return "k" if name == b"idempotency-key" else ""


class _Caller:
    principal = Principal("alice", "key", "run")


def _use(replays: Replays) -> Use:
    return replays.use(cast("RequestHead", _Head()), cast("Any", _Caller()))


def _run(work: Callable[[Replays], Awaitable[None]]) -> None:
    async def whole() -> None:
        await work(Replays())

    asyncio.run(whole())


async def _first_alone_moves(replays: Replays) -> None:
    first = _use(replays)
    assert await first.goes("aaaa", "1") == "1"
    assert await first.did_not()
    assert await first.goes("bbbb", "2") == "2"
    first.leave()
    assert _use(replays).node == "bbbb"


async def _repeat_keeps_the_node_of_what_may_have_begun(replays: Replays) -> None:
    first = _use(replays)
    await first.goes("aaaa", "1")
    first.leave()  # its client was cut off: what became of it is not known
    repeat = _use(replays)
    assert await repeat.goes("aaaa", "2") == "1"  # so that the node can say what became of it
    assert not await repeat.did_not()
    repeat.leave()
    assert _use(replays).node == "aaaa"


async def _repeat_moves_what_the_node_has_refused_for_ever(replays: Replays) -> None:
    first = _use(replays)
    await first.goes("aaaa", "1")
    repeat = _use(replays)
    await repeat.goes("aaaa", "2")
    assert await repeat.did_not(is_settled=True)
    assert await repeat.goes("bbbb", "3") == "3"
    assert not await first.did_not()  # the key is another id's now
    assert await first.did_not(is_settled=True)  # its own never begins, too
    assert await first.goes("cccc", "4") == ""
    assert first.node == "bbbb"


async def _request_beside_another_stays_with_it(replays: Replays) -> None:
    first = _use(replays)
    await first.goes("aaaa", "1")
    second = _use(replays)
    assert await second.goes("aaaa", "2") == "1"
    assert not await first.did_not()
    assert first.node == "aaaa"
    second.leave()
    assert await first.did_not()


async def _request_that_came_too_late_goes_where_the_key_went(replays: Replays) -> None:
    first, second = _use(replays), _use(replays)
    await first.goes("aaaa", "1")
    assert await second.goes("bbbb", "2") == ""
    assert second.node == "aaaa"


async def _ends_are_forgotten(replays: Replays) -> None:
    use = _use(replays)
    await use.goes("aaaa", "1")
    assert len(replays.under_way) == 1
    use.leave()
    use.leave()
    assert not replays.under_way


@pytest.mark.parametrize(
    "work",
    [
        _first_alone_moves,
        _repeat_keeps_the_node_of_what_may_have_begun,
        _repeat_moves_what_the_node_has_refused_for_ever,
        _request_beside_another_stays_with_it,
        _request_that_came_too_late_goes_where_the_key_went,
        _ends_are_forgotten,
    ],
)
def test_key_has_one_node(work: Callable[[Replays], Awaitable[None]]) -> None:
    _run(work)
