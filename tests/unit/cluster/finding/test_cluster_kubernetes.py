"""The provider of Kubernetes before a double of its API server: list, watch, what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path

import pytest

from cellwall.cluster.gateway.wire.links import Address
from cellwall.cluster.providers import kubernetes
from cellwall.cluster.providers.kubernetes import Kubernetes
from cellwall.model.errors import UsageError
from kit.cluster.api_server import SERVICE, ApiServer, api_server, endpoint, endpoint_slice

_WAIT_S = 20


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with api_server() as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path)))
        made.put(endpoint_slice("one", 7001, endpoint("a")))
        yield made


class _Followed:
    """What a provider has said, as ports."""

    def __init__(self) -> None:
        self.said: list[set[int]] = []
        self._more = asyncio.Event()

    def take(self, addresses: Collection[Address]) -> None:
        self.said.append({each.port for each in addresses})
        self._more.set()

    async def until(self, ports: set[int]) -> None:
        """Wait until the last that was said is `ports`."""
        async with asyncio.timeout(_WAIT_S):
            while not self.said or self.said[-1] != ports:
                self._more.clear()
                await self._more.wait()


@contextlib.asynccontextmanager
async def _following() -> AsyncIterator[_Followed]:
    followed = _Followed()
    provider = Kubernetes(SERVICE, "")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(provider.follow(followed.take))
        yield followed
        task.cancel()


def _run(*steps: tuple[Callable[[], object], set[int]]) -> list[set[int]]:
    """Follow, do each step and wait for what it leads to; return all that was said."""

    async def run() -> list[set[int]]:
        async with _following() as followed:
            await followed.until({7001})
            for act, ports in steps:
                await asyncio.to_thread(act)
                await followed.until(ports)
            return followed.said

    return asyncio.run(run())


def _two(api: ApiServer) -> None:
    api.put(endpoint_slice("two", 7002, endpoint("b")))


def test_list_and_each_change_are_followed(api: ApiServer) -> None:
    said = _run(
        (lambda: _two(api), {7001, 7002}),
        (lambda: api.put(endpoint_slice("one", 7001, endpoint("a", terminating=True))), {7002}),
        (lambda: api.delete("two"), set()),
    )
    assert said == [{7001}, {7001, 7002}, {7002}, set()]
    assert api.asked == ["list", "watch"]


def test_watch_that_is_too_old_is_begun_again_with_a_list(api: ApiServer) -> None:
    def away() -> None:
        api.delete("one")
        api.forget()
        _two(api)

    said = _run((away, {7002}))
    assert api.asked[:2] == ["list", "watch"]
    assert api.asked.count("list") >= 2
    assert {7001} in said


def test_nothing_changes_while_the_api_server_is_away_or_refuses(api: ApiServer) -> None:
    def away() -> None:
        api.stop()
        api.slices.clear()
        api.forget()
        api.refusal = 403
        api.start()
        api.wait_asked("refused", 4)

    async def run() -> None:
        async with _following() as followed:
            await followed.until({7001})
            await asyncio.to_thread(away)
            assert followed.said == [{7001}]
            api.refusal = 0
            await asyncio.to_thread(_two, api)
            await followed.until({7002})

    asyncio.run(run())


def test_dead_watch_is_found_out_by_the_next_list(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "_AGAIN_S", 1)

    def silently() -> None:
        """Change what is listed, without an event: the watch is as good as dead."""
        with api.changed:
            api.slices["one"] = endpoint_slice("one", 7009, endpoint("z"))

    _run((silently, {7009}))


def test_gateway_without_an_api_server_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="find the API server"):
        Kubernetes(SERVICE, "")
