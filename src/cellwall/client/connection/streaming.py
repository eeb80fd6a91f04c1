"""Streaming: the lines of a streamed answer, for the code that follows one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

    from cellwall.client.connection.transport import Json


async def objects(response: httpx.Response) -> AsyncIterator[Json]:
    """Yield the objects of an NDJSON answer."""
    parts: list[bytes] = []
    async for data in response.aiter_raw():
        *lines, rest = data.split(b"\n")
        for line in lines:
            yield json.loads(b"".join((*parts, line)))
            parts.clear()
        parts.append(rest)
