"""The budget of request bodies: who may hold how much, and for how long it is counted."""

from __future__ import annotations

import asyncio

import pytest

from cellwall.engine.scheduling import capacity
from cellwall.model.errors import CapacityError
from cellwall.server.core.body_budget import BodyBudget, Held, most_bytes
from cellwall.server.core.settings import ServerSettings

_MIB = 1024 * 1024


def test_a_tenant_may_hold_half_and_all_together_the_whole() -> None:
    bodies = BodyBudget(100)
    bodies.take("alice", 50)
    with pytest.raises(CapacityError, match="those of this tenant"):
        bodies.take("alice", 1)
    bodies.take("bob", 40)
    with pytest.raises(CapacityError, match="those of all callers") as refused:
        bodies.take("carol", 11)
    assert refused.value.retry_after_s > 0
    assert refused.value.remedy
    assert bodies.held_bytes == 90  # a refused one counts nothing
    bodies.give_back("alice", 50)
    bodies.take("carol", 11)
    bodies.take("alice", 49)  # what was given back is hers again


def test_who_holds_nothing_is_forgotten() -> None:
    bodies = BodyBudget(100)
    for number in range(1000):
        held = Held(bodies, f"tenant-{number}")
        held.resize(10)
        held.resize(4)
        held.release()
        held.release()
    assert bodies.held_bytes == 0
    assert not bodies._by_tenant


def test_it_is_counted_until_what_it_began_has_ended() -> None:
    bodies = BodyBudget(100)

    async def go() -> None:
        ended = asyncio.get_running_loop().create_future()
        held = Held(bodies, "alice")
        held.resize(30)
        held.until(ended)
        held.release()
        assert bodies.held_bytes == 30
        ended.set_result(None)
        await asyncio.sleep(0)
        assert bodies.held_bytes == 0
        held = Held(bodies, "alice")
        held.resize(30)
        held.until(ended)
        held.release()
        assert bodies.held_bytes == 0

    asyncio.run(go())


def test_refused_bytes_are_not_counted_as_its_own() -> None:
    bodies = BodyBudget(100)
    held = Held(bodies, "alice")
    held.resize(50)
    with pytest.raises(CapacityError):
        held.resize(51)
    held.release()
    assert bodies.held_bytes == 0


@pytest.mark.parametrize(
    ("bodies_mb", "body_mb", "memory_mb", "expected_mb"),
    [
        (0, 64, 16_384, 1024),
        (0, 64, 512, 128),  # two of the largest, or one of them never fits
        (0, 1, 512, 64),
        (300, 64, 16_384, 300),
        (1, 64, 16_384, 128),
    ],
)
def test_how_much_there_is(
    bodies_mb: int,
    body_mb: int,
    memory_mb: int,
    expected_mb: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "memory_mb", lambda _: memory_mb)
    settings = ServerSettings(bodies_mb=bodies_mb, body_bytes=body_mb * _MIB)
    assert most_bytes(settings) == expected_mb * _MIB
