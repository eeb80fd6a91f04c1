"""Callbacks: the result of a submission is sent by PUT to a URL of its caller.

Only where the operator permits webhooks, and only to the addresses that those may go to. The
invariant: no submission waits for a callback, and their number at a time is bounded.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.posting import Denied, Poster, SystemResolver, Unanswered
from cellwall.egress.target import target_of
from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.server.core.settings import ServerSettings

ATTEMPTS = 3
ATTEMPT_S = 5.0
_AT_ONCE = 16
_HEADERS = (("Content-Type", "application/json"), ("User-Agent", "cellwall-judge0"))


class Callbacks:
    """Sends callbacks; see the module. Lives on one event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        """Connect to nothing yet."""
        self._is_permitted = settings.webhooks
        self._resolver = SystemResolver()
        self._poster = Poster(AddressPolicy(settings.webhook_networks), self._resolver)
        self._free = asyncio.Semaphore(_AT_ONCE)

    def check(self, url: str) -> None:
        """Raise `UsageError` for a URL that would never be called."""
        if not self._is_permitted:
            raise UsageError("callbacks are not allowed")
        target_of(url)

    async def send(self, url: str, value: Mapping[str, Any]) -> None:
        """Send a result, up to three times."""
        target = target_of(url)
        body = json.dumps(value, separators=(",", ":")).encode()
        async with self._free:
            for _ in range(ATTEMPTS):
                try:
                    async with asyncio.timeout(ATTEMPT_S):
                        status = await self._poster.post(target, _HEADERS, body, "PUT")
                except Denied:
                    return
                except (Unanswered, TimeoutError):
                    continue
                if status < 500:
                    return

    def close(self) -> None:
        """Take no more names."""
        self._resolver.close()
