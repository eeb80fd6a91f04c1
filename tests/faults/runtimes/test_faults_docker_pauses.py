"""A container whose processes the engine cannot freeze: it is asked again, for a bounded time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cellwall import AsyncSandbox, Engine, EngineSettings
from cellwall.model.errors import CapacityError
from cellwall.runtimes.docker import sandbox as docker_sandbox
from cellwall.runtimes.docker.daemon import Daemon, Refused
from cellwall.runtimes.docker.sandbox import DockerSandbox
from cellwall.testing.bare import BareTemplates
from kit.copies.hibernated import status
from kit.faults.unfreezable import is_in_call, unfreezable
from kit.waiting import wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(120),
    pytest.mark.usefixtures("docker_daemon"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="its numbers of system calls"),
]


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the daemon says to pauses that it refuses."""
    found: list[str] = []
    real = Daemon.pause

    async def pause(daemon: Daemon, container: str) -> None:
        try:
            await real(daemon, container)
        except Refused as error:
            found.append(error.message)
            raise

    monkeypatch.setattr(Daemon, "pause", pause)
    return found


@asynccontextmanager
async def _sandbox(ground: tuple[Path, BareTemplates]) -> AsyncIterator[tuple[AsyncSandbox, str]]:
    """A sandbox in a container, and its freezer's group."""
    settings = EngineSettings(pool_min=0, pool_max=0)
    engine = Engine(ground[0], settings, templates=ground[1])
    try:
        made = await engine.create_sandbox(runtime="docker")
        inside = made.live.runtime_sandbox
        assert isinstance(inside, DockerSandbox)
        freezer = inside._resources.groups.freezer
        assert freezer is not None
        yield made, freezer.path
    finally:
        await engine.aclose()


def test_pause_waits_for_a_process_that_does_not_stop_yet(
    docker_ground: tuple[Path, BareTemplates], refusals: list[str]
) -> None:
    async def paused() -> None:
        async with _sandbox(docker_ground) as (sandbox, group):
            await sandbox.run("x = 1")
            with unfreezable(group) as process:
                await asyncio.to_thread(wait_until, lambda: is_in_call(process), "it waits")
                pausing = asyncio.ensure_future(sandbox.pause())
                await asyncio.to_thread(wait_until, lambda: bool(refusals), "it is refused")
                assert not pausing.done()
                process.kill()
                await pausing
            assert status(sandbox) == "paused"
            assert (await sandbox.run("print(x)")).stdout == "1\n"

    asyncio.run(paused())
    assert all("freeze" in each for each in refusals)


def test_pause_that_stays_impossible_is_an_error_and_the_sandbox_runs_on(
    docker_ground: tuple[Path, BareTemplates],
    refusals: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docker_sandbox, "_PATIENCE_S", 0.5)

    async def refused() -> None:
        async with _sandbox(docker_ground) as (sandbox, group):
            await sandbox.run("x = 1")
            with unfreezable(group) as process:
                await asyncio.to_thread(wait_until, lambda: is_in_call(process), "it waits")
                with pytest.raises(CapacityError, match=r"did not stop within 0\.5 s; try again"):
                    await sandbox.pause()
                assert status(sandbox) == "running"
                assert (await sandbox.run("print(x)")).stdout == "1\n"
            await sandbox.pause()
            assert status(sandbox) == "paused"

    asyncio.run(refused())
    assert refusals
