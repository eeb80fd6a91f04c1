"""Budget of request bodies in memory, in bytes: over all callers and per tenant.

The cap of one body is in `request` and `endpoint`, the host's free memory in
`engine.scheduling.host_headroom`. The budget counts bytes that callers sent; as text and in the
frames to a sandbox the server has them two or three times more. The invariants: a body is counted
from its first byte until no part of the server holds it, also when the work it began outlives its
connection; and no tenant can have more than half.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cellwall.engine.scheduling import capacity
from cellwall.model.errors import CapacityError

if TYPE_CHECKING:
    import asyncio

    from cellwall.server.core.settings import ServerSettings

HELD_TIMES = 4
"""Most copies of a body in use that the server has at once: as bytes, text, frames to a sandbox."""
_SHARE = 4 * HELD_TIMES
"""Divisor of the machine's memory for bodies, so that all their copies take at most a quarter."""
_LEAST_BYTES = 64 * 1024 * 1024
"""Least budget in bytes. Half of it holds one line of a batch with the next, or a message of MCP
with the request it makes."""
_RETRY_S = 1.0


def most_bytes(settings: ServerSettings) -> int:
    """Return the budget: as set, or by this machine's memory; at least enough for two bodies."""
    wanted = settings.bodies_mb or capacity.memory_mb(capacity.Files()) // _SHARE
    return max(wanted << 20, 2 * settings.body_bytes, _LEAST_BYTES)


class BodyBudget:
    """All bodies that are held now; one per server."""

    def __init__(self, most_bytes: int) -> None:
        """A tenant may hold half of `most_bytes`."""
        self._most = most_bytes
        self._each = most_bytes // 2
        self._by_tenant: Counter[str] = Counter()
        self.held_bytes = 0

    def take(self, tenant: str, size: int) -> None:
        """Count `size` bytes more; `CapacityError` if they are too many."""
        if self._by_tenant[tenant] + size > self._each:
            raise _full("those of this tenant", self._each)
        if self.held_bytes + size > self._most:
            raise _full("those of all callers", self._most)
        self._by_tenant[tenant] += size
        self.held_bytes += size

    def give_back(self, tenant: str, size: int) -> None:
        """Count `size` bytes less."""
        self.held_bytes -= size
        self._by_tenant[tenant] -= size
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]


class Held:
    """The held part of one body."""

    __slots__ = ("_bodies", "_tenant", "_until", "size")

    def __init__(self, bodies: BodyBudget, tenant: str) -> None:
        self._bodies = bodies
        self._tenant = tenant
        self.size = 0
        """Number of bytes that are held now."""
        self._until: asyncio.Future[None] | None = None

    def resize(self, size: int) -> None:
        """Set the number of held bytes to `size`; `CapacityError` if there is no room for more."""
        more = size - self.size
        if more > 0:
            self._bodies.take(self._tenant, more)
        else:
            self._bodies.give_back(self._tenant, -more)
        self.size = size

    def until(self, future: asyncio.Future[None]) -> None:
        """Count the body until `future` is done: the work that was begun with it holds it, too."""
        self._until = future

    def release(self) -> None:
        """Stop counting the body, at once or when `until`'s future is done; idempotent."""
        if self._until is None or self._until.done():
            self._give_back()
        else:
            self._until.add_done_callback(self._give_back)

    def _give_back(self, _: object = None) -> None:
        self.resize(0)


def _full(whose: str, most: int) -> CapacityError:
    return CapacityError(
        f"body: {whose} under way hold all of the {most >> 20} MiB there are for them",
        retry_after_s=_RETRY_S,
        remedy="send it again when others have ended, or send less at once",
    )
