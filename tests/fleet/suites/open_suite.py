"""A cluster without tokens, where every process that reaches it may run code: refused.

Runs in the environment of `suite-ray`, in a fresh network namespace; `test_fleet_at_work`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cellwall.fleet import Fleet
from cellwall.model.errors import HostUnsupported
from kit.fleet.driving import ADDRESS, Loop
from kit.fleet.house import House, house


@pytest.fixture(scope="module")
def around() -> Iterator[House]:
    with house(has_token=False, nodes=0) as made:
        yield made


async def joined(*, trusted: bool = False) -> str:
    fleet = await Fleet.connect(ADDRESS, trusted=trusted)
    try:
        return (await fleet.arun("print(1)")).stdout
    finally:
        await fleet.close()


def test_it_is_refused_before_anything_is_sent(around: House) -> None:
    loop = Loop()
    os.environ.update(around.environment(around.place / "state0"))
    with pytest.raises(HostUnsupported) as caught:
        loop.do(joined())
    assert caught.value.feature == "token"
    assert "RAY_AUTH_MODE=token" in str(caught.value.remedy)
    loop.close()


def test_its_owner_may_say_that_it_is_trusted(around: House) -> None:
    """The control: it is the token alone that is missing."""
    loop = Loop()
    os.environ.update(around.environment(around.place / "state0"))
    assert loop.do(joined(trusted=True)) == "1\n"
    loop.close()
