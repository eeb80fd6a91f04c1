"""A cluster without tokens, where every process that reaches it may run code: refused.

Runs in the environment of `suite-ray`, in a fresh network namespace; `test_fleet_at_work`.
"""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_a_driver_with_a_token_finds_out_that_others_need_none(around: House) -> None:
    """The cluster takes its token without looking at it; what counts is that it asks for one."""
    code = f"""
import asyncio
from cellwall.fleet import Fleet
from cellwall.model.errors import HostUnsupported
async def main():
    try:
        await Fleet.connect({ADDRESS!r})
    except HostUnsupported as error:
        print(error.feature, error.message)
asyncio.run(main())
"""
    environment = around.environment(around.place / "state0")
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(around.token)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "token fleet: the head of the cluster answers without a token\n", (
        done.stdout + done.stderr
    )
