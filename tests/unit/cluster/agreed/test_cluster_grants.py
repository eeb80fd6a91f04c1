"""Grants: how a quota is divided among nodes, and what a node makes of the words of gateways."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from cellwall.cluster.directory.grants import Amount, Granted
from cellwall.cluster.gateway.agreed.granting import Want, has_costs, share
from cellwall.cluster.node.grants import NodeGrants
from cellwall.engine.scheduling.admission import NOTHING, Cost, Machine
from cellwall.engine.scheduling.fair_queue import FairQueue, Place
from cellwall.engine.scheduling.quotas import Quotas, Tenants
from cellwall.model.errors import QuotaExceeded, UsageError

SMALL = Cost(64, 1, 0, 0.5)


def _want(least: int, most: int) -> Want:
    return Want("moss", Amount(least, 500), Amount(most, 500))


@pytest.mark.parametrize(
    ("nodes", "want", "found"),
    [
        ({}, _want(64, 128), (Amount(128, 0), True)),
        ({}, _want(64, 2048), (Amount(1024, 0), True)),
        ({"b": Amount(1000)}, _want(64, 128), (Amount(24, 0), False)),
        ({"b": Amount(1000), "a": Amount(24)}, _want(64, 128), (Amount(24, 0), False)),
        ({"lost": Amount(1000)}, _want(64, 128), (Amount(128, 0), True)),
        ({"a": Amount(512)}, _want(64, 128), (Amount(512, 0), True)),  # it may hold that already
    ],
)
def test_node_gets_what_others_leave_and_never_less_than_it_has(
    nodes: dict[str, Amount], want: Want, found: tuple[Amount, bool]
) -> None:
    assert share(Quotas(memory_mb=1024), Granted(1, nodes), "a", want, {"lost"}) == found


def test_each_quota_has_to_have_room() -> None:
    quotas, granted = Quotas(memory_mb=1024, cpus=0.7), Granted(1, {"b": Amount(0, 300)})
    assert share(quotas, granted, "a", _want(64, 64), ()) == (Amount(64, 400), False)
    assert [has_costs(each) for each in (quotas, Quotas(file_mb=1), Quotas())] == [
        True,
        True,
        False,
    ]


class _Request:
    """What a handler takes of a request."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.said: dict[str, Any] = {}

    async def body(self, _most: int) -> bytes:
        return self._body

    async def answer(self, value: dict[str, Any]) -> None:
        self.said = value


class Spoken:
    """A node with a queue of its own, and a gateway's words to it."""

    def __init__(self) -> None:
        tenants = Tenants({"default": Quotas(memory_mb=1024)})
        self.queue = FairQueue(100, 100, Machine(Cost(1 << 20, 1 << 20)), tenants)
        self.node = NodeGrants()
        self.node.open(cast("Any", self), "run-1")
        self.node.begin()
        self.use = tenants.use("moss")

    async def say(self, change: int, granted: list[int] | None, **more: Any) -> dict[str, Any]:
        said = {"generation": "run-1", "tenant": "moss", "change": change, "granted": granted}
        return await self._ask("/node/grants", json.dumps({**said, "is_final": False, **more}))

    async def wants(self) -> list[dict[str, Any]]:
        return list((await self._ask("/node/wants", ""))["wants"])

    async def _ask(self, path: str, body: str) -> dict[str, Any]:
        (endpoint,) = (each for each in self.node.endpoints if each.path == path)
        request = _Request(body.encode())
        await endpoint.handler(cast("Any", request))
        return request.said


def test_nothing_is_held_before_it_is_granted_and_waiting_programs_begin_then() -> None:
    async def run() -> None:
        node, begun = Spoken(), list[Place]()
        for _ in range(3):
            node.queue.ask("moss", SMALL, begun.append)
        assert begun == []
        (want,) = await node.wants()
        assert want == {"tenant": "moss", "least": [64, 500, 0], "most": [192, 1500, 0]}
        assert (await node.say(1, [128, 0, 0]))["held"] == [128, 1000, 0]
        assert len(begun) == 2
        (want,) = await node.wants()
        assert want["least"] == [192, 1500, 0]
        assert (await node.say(2, [192, 0, 0]))["held"] == [192, 1500, 0]
        assert (len(begun), await node.wants()) == (3, [])

    asyncio.run(run())


def test_word_that_comes_late_and_one_for_an_earlier_run_change_nothing() -> None:
    async def run() -> None:
        node = Spoken()
        await node.say(5, [512, 0, 0])
        assert not (await node.say(5, [1024, 0, 0]))["is_news"]
        assert not (await node.say(4, None))["is_news"]
        assert node.use.granted == Cost(512)
        with pytest.raises(UsageError, match="earlier run"):
            await node.say(6, [1024, 0, 0], generation="run-0")
        assert (await node.say(5, None))["is_news"]  # what is read last may be given back
        assert node.use.granted == NOTHING

    asyncio.run(run())


def test_what_is_given_back_is_not_held_any_more() -> None:
    async def run() -> None:
        node = Spoken()
        await node.say(1, [1024, 0, 0])
        promise = node.queue.hold("moss", SMALL)
        assert (await node.say(1, None))["held"] == [64, 500, 0]
        with pytest.raises(QuotaExceeded, match="quota memory_mb: 1024 of 1024 are in use"):
            node.queue.hold("moss", SMALL)
        promise.release()
        node.queue.hold("moss", SMALL)

    asyncio.run(run())


def test_sandbox_waits_for_a_word_and_is_refused_by_the_last_one() -> None:
    async def run() -> None:
        node = Spoken()
        for is_final in (False, True):
            waiting = asyncio.ensure_future(node.queue.room("moss", SMALL))
            (want,) = await node.wants()
            assert not waiting.done()
            await node.say(2 if is_final else 1, [64, 0, 0], is_final=is_final)
            await asyncio.wait_for(waiting, 5)
            if is_final:
                assert want["least"] == [128, 1000, 0]
                with pytest.raises(QuotaExceeded, match="1024 of 1024"):
                    node.queue.hold("moss", SMALL)
            else:
                node.queue.hold("moss", SMALL)
        with pytest.raises(UsageError, match="can never fit"):
            await node.queue.room("moss", Cost(2048))

    asyncio.run(run())


def test_want_is_told_to_another_gateway_once_the_first_has_not_granted_it() -> None:
    async def run() -> None:
        node = Spoken()
        node.queue.ask("moss", SMALL, lambda _place: None)
        loop = asyncio.get_running_loop()
        assert await node.wants()
        began_s = loop.time()
        assert await node.wants()
        assert loop.time() - began_s >= 0.2

    asyncio.run(run())


def test_wants_of_all_tenants_are_told_however_many_lack_room() -> None:
    async def run() -> None:
        node, names = Spoken(), {f"t{number}" for number in range(450)}
        for name in names:
            node.queue.ask(name, SMALL, lambda _place: None)
        told = [[want["tenant"] for want in await node.wants()] for _ in range(3)]
        assert len(told[0]) == len(told[1]) == 200
        assert {name for each in told for name in each} == names

    asyncio.run(run())


def test_want_is_told_again_after_a_last_word_only_if_something_came_or_time_passed() -> None:
    async def run() -> None:
        node = Spoken()
        node.queue.ask("moss", SMALL, lambda _place: None)
        await node.wants()
        await node.say(1, [32, 0, 0], is_final=True)
        assert await node.wants() == []  # held back for its longest, a second
        node.queue.ask("moss", SMALL, lambda _place: None)
        (want,) = await node.wants()
        assert want["most"] == [128, 1000, 0]
        await node.say(1, [32, 0, 0], is_final=True)
        told = [await node.wants() for _ in range(3)]
        assert (told[0], [want] in told) == ([], True)

    asyncio.run(run())


def test_sandbox_that_comes_after_a_last_word_is_asked_for_at_once() -> None:
    async def run() -> None:
        node = Spoken()
        for _ in range(2):
            waiting = asyncio.ensure_future(node.queue.room("moss", SMALL))
            (want,) = await node.wants()
            assert want["least"] == [64, 500, 0]
            await node.say(1, [32, 0, 0], is_final=True)
            await asyncio.wait_for(waiting, 1)

    asyncio.run(run())
