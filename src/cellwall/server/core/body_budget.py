"""How many bytes of request bodies are held together, of all callers and of each tenant.

Not how large one may be (`request`, `endpoint`) and not what the host has left
(`engine.scheduling.host_headroom`). What is counted is what callers sent; as text and in what a
sandbox is sent the server has it twice or three times more. The invariants: a body is counted from
its first byte until nothing holds it, also when what it began outlives its connection; and no
tenant can have more than half.
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
"""How often the server has a body at most while it is used: as bytes, text, frames to a sandbox."""
_SHARE = 4 * HELD_TIMES
"""Of the machine's memory bodies may take one part in so many, so all they cost is a quarter."""
_LEAST_BYTES = 64 * 1024 * 1024
"""Half of it is one line of a batch with the next, or a message of MCP with what it asks for."""
_RETRY_S = 1.0


def most_bytes(settings: ServerSettings) -> int:
    """Return how many may be held: as set, or by this machine; never too few for one body alone."""
    wanted = settings.bodies_mb or capacity.memory_mb(capacity.Files()) // _SHARE
    return max(wanted << 20, 2 * settings.body_bytes, _LEAST_BYTES)


class Bodies:
    """All that are held now; one per server."""

    def __init__(self, most_bytes: int) -> None:
        """Nothing is held; a tenant may hold half of `most_bytes`."""
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
    """What is held of one body."""

    __slots__ = ("_bodies", "_tenant", "_until", "size")

    def __init__(self, bodies: Bodies, tenant: str) -> None:
        """Nothing of it has come."""
        self._bodies = bodies
        self._tenant = tenant
        self.size = 0
        """Bytes that are held now."""
        self._until: asyncio.Future[None] | None = None

    def resize(self, size: int) -> None:
        """So much of it is held now, in bytes; `CapacityError` if there is no room for more."""
        more = size - self.size
        if more > 0:
            self._bodies.take(self._tenant, more)
        else:
            self._bodies.give_back(self._tenant, -more)
        self.size = size

    def until(self, future: asyncio.Future[None]) -> None:
        """What was begun with it holds it, too, until `future` is done."""
        self._until = future

    def let_go(self) -> None:
        """It is not held any more by whoever read it; idempotent."""
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
