"""A broker that serves on loopback from a thread, as the proxy serves a sandbox."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellwall.egress.packages.broker import Broker, BrokerSettings
from cellwall.egress.packages.cache import Cache
from cellwall.egress.packages.serving import Served, Terms, serve
from cellwall.egress.packages.upstream import Upstream
from cellwall.model.packages import PackagePolicy
from kit.packages.registries import Registry

ON = {"registries": ["pypi", "npm"]}


def upstreams(registry: Registry, credentials: str = "") -> list[Upstream]:
    """Return both upstreams of a registry of the test's."""
    return [
        Upstream.of({"registry": "pypi", "url": registry.url("/simple", credentials)}),
        Upstream.of({"registry": "npm", "url": registry.url("/npm", credentials)}),
    ]


@dataclass
class Serving:
    """A broker that listens. `policy` counts from the next request on."""

    port: int
    place: Path
    """Where clients of this test have their files."""
    broker: Broker
    policy: PackagePolicy
    served: list[Served] = field(default_factory=list)

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def only(self, **policy: Any) -> None:
        """Set the policy, with both registries on."""
        self.policy = PackagePolicy.of({**ON, **policy})


@contextmanager
def serving(
    place: Path,
    asked: list[Upstream],
    settings: BrokerSettings | None = None,
    **more: Any,
) -> Iterator[Serving]:
    """Serve for a block, with a cache below `place`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(work: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), loop).result(30)

    cache = Cache(str(place / "cache"), most_bytes=1024**3)
    made = Serving(0, place, Broker(asked, cache, settings, **more), PackagePolicy.of(ON))

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        terms = Terms(lambda: made.policy, on_served=made.served.append)
        await serve(reader, writer, made.broker, terms)

    server = wait(lambda: asyncio.start_server(accepted, "127.0.0.1", 0))
    made.port = server.sockets[0].getsockname()[1]

    async def end() -> None:
        server.close()
        await made.broker.aclose()
        mine = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in mine:
            each.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    try:
        yield made
    finally:
        wait(end)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
