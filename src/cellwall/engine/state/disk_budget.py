"""The bytes on disk that sessions may take which are written down, for one engine.

`copies` takes of it, and a server bounds each tenant's part. What writes takes its bytes as they
come, from any thread. So forks at the same time, and a session that writes without end, stay below
the bounds together.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from cellwall.model.errors import QuotaExceeded


def _no_bound(_tenant: str) -> int | None:
    return None


class DiskBudget:
    """The bytes of all sessions that are written down."""

    def __init__(self, most_bytes: int) -> None:
        """Nothing is taken yet."""
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self.used_bytes = 0
        self.most_mb_of: Callable[[str], int | None] = _no_bound
        """Returns how many MiB a tenant's sessions may take together, None for no bound."""

    def begin(self, most_bytes: int, tenant: str = "") -> SessionBudget:
        """Return what one session of a tenant may take of it, at most that much."""
        most_mb = self.most_mb_of(tenant)
        return SessionBudget(self, most_bytes, tenant, most_mb)

    def begin_shared(self, most_bytes: int, owner: str) -> SessionBudget:
        """Return the same for what several tenants share: no tenant's bound is asked."""
        return SessionBudget(self, most_bytes, owner, None)

    def hold(self, count: int, tenant: str) -> None:
        """Count bytes that are on disk already, whether there is room or not."""
        with self._lock:
            self.used_bytes += count
            self._taken[tenant] += count

    def change(self, count: int, tenant: str, most_mb: int | None = None) -> bool:
        """Take `count` bytes, or give them back if negative; report whether there are so many.

        `most_mb`: MiB that the tenant may have then. Raises QuotaExceeded if that is too little.
        """
        with self._lock:
            if most_mb is not None and self._taken[tenant] + count > most_mb << 20:
                raise QuotaExceeded(
                    "snapshots_mb",
                    f"copy a session: snapshots and copies of this tenant may take {most_mb} MiB "
                    "of the server's disk",
                    retry_after_s=60.0,
                    remedy="delete snapshots, or end sandboxes that are copies",
                )
            if self.used_bytes + count > self._most_bytes:
                return False
            self.used_bytes += count
            self._taken[tenant] += count
            if not self._taken[tenant]:
                del self._taken[tenant]
            return True

    def taken_mb(self, tenant: str) -> int:
        """Return the MiB that a tenant's sessions take now, rounded up."""
        with self._lock:
            return -(-self._taken.get(tenant, 0) >> 20)


class SessionBudget:
    """The bytes of one session."""

    def __init__(
        self, whole: DiskBudget, most_bytes: int, tenant: str, most_mb: int | None
    ) -> None:
        """Called by `DiskBudget.begin`."""
        self._whole = whole
        self._most_bytes = most_bytes
        self._tenant = tenant
        self._most_mb = most_mb
        self._taken_bytes = 0
        self._lock = threading.Lock()
        self.refusal: QuotaExceeded | None = None
        """Why its tenant may not have more, once that was so."""

    def take(self, count: int) -> bool:
        """Take `count` bytes more; report whether there are so many."""
        with self._lock:
            if self._taken_bytes + count > self._most_bytes:
                return False
            try:
                has_room = self._whole.change(count, self._tenant, self._most_mb)
            except QuotaExceeded as error:
                self.refusal = error
                return False
            self._taken_bytes += count if has_room else 0
            return has_room

    def hold(self, count: int) -> None:
        """Count bytes that are on disk already, whether there is room or not."""
        with self._lock:
            self._whole.hold(count, self._tenant)
            self._taken_bytes += count

    def give_back(self) -> None:
        """Give all of them back; idempotent."""
        with self._lock:
            count, self._taken_bytes = self._taken_bytes, 0
        self._whole.change(-count, self._tenant)
