"""Requests to a broker without a client between: what it answers, whole or broken."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellwall.egress.packages.broker import Broker, BrokerRequest, BrokerSettings
from cellwall.egress.packages.cache import Cache, CachedFile
from cellwall.egress.packages.downloads import Broken, Following
from cellwall.egress.packages.listings.python_page import JSON
from cellwall.egress.packages.upstream import Upstream
from cellwall.model.packages import PackagePolicy
from kit.packages.brokers import ON


@dataclass(frozen=True)
class Got:
    """An answer. `broken` is why its body did not come whole."""

    status: int
    reason: str
    headers: dict[str, str]
    content: bytes
    broken: str = ""

    @property
    def urls(self) -> dict[str, str]:
        """Return the URL of each file of a page."""
        return {each["filename"]: each["url"] for each in json.loads(self.content)["files"]}


@asynccontextmanager
async def brokering(
    place: Path,
    asked: list[Upstream],
    settings: BrokerSettings | None = None,
    *,
    most_bytes: int = 1024**3,
    **more: Any,
) -> AsyncIterator[Broker]:
    """Yield a broker on the running loop."""
    made = Broker(asked, Cache(str(place / "cache"), most_bytes=most_bytes), settings, **more)
    try:
        yield made
    finally:
        await made.aclose()


async def ask(
    broker: Broker, target: str, method: str = "GET", *, agent: str = "uv/1", **policy: Any
) -> Got:
    """Ask once, and read the answer to its end."""
    headers = {"accept": JSON, "host": "packages.test", "user-agent": agent}
    request = BrokerRequest(method, target, headers)
    answer = await broker.answer(request, PackagePolicy.of({**ON, **policy}))
    broken, content = "", b""
    try:
        if isinstance(answer.body, bytes):
            content = answer.body
        elif isinstance(answer.body, CachedFile):
            content = os.pread(answer.body.fd, answer.body.length, 0)
        elif isinstance(answer.body, Following):
            async for piece in answer.body.pieces():
                content += piece
    except Broken as error:
        broken = str(error)
    finally:
        answer.close()
    return Got(answer.status, answer.reason, dict(answer.headers), content, broken)
