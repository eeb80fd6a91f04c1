"""What of each tenant may wait in the directory: programs, their bodies, and notices.

Asked by `accepting`. The invariant: what this gateway is about to write counts before it is
written; several gateways together may pass a bound by what they accept in one moment.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from cellwall.egress.webhook import WebhookSettings
from cellwall.engine.scheduling.quotas import exceeded
from cellwall.model.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cellwall.cluster.directory.programs import Programs, Waits
    from cellwall.engine.scheduling.quotas import Tenants

_MIB = 1 << 20
_MOST_NOTICES = WebhookSettings().most_waiting_per_tenant


class Bounds:
    """See the module."""

    def __init__(self, programs: Programs, tenants: Tenants, most: int) -> None:
        """`tenants` knows each one's quotas; no more than `most` programs of one wait."""
        self._programs = programs
        self._tenants = tenants
        self._most = most
        self._coming: Counter[str] = Counter()
        """Programs of each tenant that are on their way into the directory."""
        self._coming_bytes: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def room(self, tenant: str, size: int, *, has_webhook: bool) -> AsyncIterator[None]:
        """Have room for one more program, whose body has `size` bytes, for a block.

        Raises QuotaExceeded, CapacityError, StoreBusy; UsageError for what could never wait.
        """
        self._coming[tenant] += 1
        self._coming_bytes[tenant] += size
        try:
            waits = await self._programs.waits(tenant, self._most, _MOST_NOTICES)
            self._check_count(tenant, waits)
            self._check_bytes(tenant, waits, size)
            if has_webhook and waits.notices >= _MOST_NOTICES:
                raise _full(f"{waits.notices} notices of this tenant", "were delivered")
            yield
        finally:
            self._coming[tenant] -= 1
            self._coming_bytes[tenant] -= size
            if not self._coming[tenant]:
                del self._coming[tenant], self._coming_bytes[tenant]

    def _check_count(self, tenant: str, waits: Waits) -> None:
        quota = self._tenants.use(tenant).quotas.queued
        most = self._most if quota is None else min(quota, self._most)
        count = min(waits.programs, most) + self._coming[tenant] - 1
        if count < most:
            return
        if quota is not None and count >= quota:
            raise exceeded("queued", count, quota, "let some end", wait_s=1)
        raise _full(f"{self._most} programs", "have ended")

    def _check_bytes(self, tenant: str, waits: Waits, size: int) -> None:
        quota = self._tenants.use(tenant).quotas.stored_mb
        if quota is None:
            return
        if size > quota * _MIB:
            raise UsageError(
                f"quota stored_mb: {size} bytes can never wait, it is {quota} MiB for this tenant",
                remedy="send less at once, or ask the operator for a larger tier",
            )
        others = waits.bytes + self._coming_bytes[tenant] - size
        if others + size > quota * _MIB:
            have = round(others / _MIB, 2)
            raise exceeded("stored_mb", have, quota, "let some begin, send less")


def _full(what: str, until: str) -> CapacityError:
    return CapacityError(
        f"background: {what} wait, the most",
        retry_after_s=1.0,
        remedy=f"try again when some {until}",
    )
