"""How much each tenant has on the store's disk: waiting bodies, and what is kept of ended work.

Called by `ledger` and `sandboxes`, which write; memory is counted by `body_budget`. It counts data
whose size callers decide: bodies of waiting programs, answers and events. Of each kept thing the
first 4 KiB are free, because every execution leaves as much. The invariants: a waiting body is
counted from before it is written until its execution begins or ends; nothing is counted for longer
than `_BUCKET_S` after it is gone.
"""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from cellwall.model.errors import QuotaExceeded, UsageError
from cellwall.server.core.times import steady
from cellwall.store.records.errors import StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cellwall.engine.scheduling.quotas import Tenants, Use
    from cellwall.store.records.rows import KeptRow

FREE_BYTES = 4096
"""Bytes free of charge per kept thing; the sum of these is bounded by how fast programs run."""
_BUCKET_S = 15.0
"""Seconds of ends that are forgotten together."""
_LARGE_BYTES = 64 * 1024
"""Size in bytes of a large body. When the disk is low, larger ones are refused, as are those of
tenants that have a thousand times as much there."""
_FRESH_S = 0.25
_WAIT_S = 5.0
_MOST_FLOOR_MB = 1024
_MIB = 1 << 20


class Kept:
    """Counts each tenant's bytes on disk; see the module. One per server."""

    def __init__(
        self, tenants: Tenants, retention_s: float, disk: Path | None, least_free_mb: int
    ) -> None:
        """`disk` is a directory of the store's file system; None: the store is not on this host."""
        self._tenants = tenants
        self._retention_s = retention_s
        self._disk = disk
        self._least_free_mb = least_free_mb
        self._waiting: dict[str, tuple[Use, int]] = {}
        self._buckets: OrderedDict[int, Counter[str]] = OrderedDict()
        self._read_at = -1.0
        self._is_low = False

    def check(self, tenant: str, size: int) -> None:
        """Raise unless `tenant` may have `size` more bytes waiting and the disk has room for them.

        Raises `QuotaExceeded`, `UsageError` for what could never fit, `StoreFull`.
        """
        use = self._tenants.use(tenant)
        most = use.quotas.stored_mb
        if most is not None and use.stored_bytes + size > most * _MIB:
            raise self._exceeded(use, most, size)
        is_much = size > _LARGE_BYTES or use.stored_bytes > 1000 * _LARGE_BYTES
        if is_much and self._has_little_left():
            raise StoreFull(
                "accept: the disk of the store has too little left for large programs",
                retry_after_s=_WAIT_S,
                remedy="send less at once, or try again; the operator has to make room "
                "(least_free_disk_mb)",
            )

    def _exceeded(self, use: Use, most: int, size: int) -> Exception:
        if size > most * _MIB:
            return UsageError(
                f"quota stored_mb: {size} bytes can never wait, it is {most} MiB for this tenant",
                remedy="send less at once, or ask the operator for a larger tier",
            )
        return QuotaExceeded(
            "stored_mb",
            f"quota stored_mb: {use.stored_mb:g} of {most} MiB of programs that wait and of what "
            "is kept of others are in use",
            retry_after_s=self._free_in_s(use.tenant),
            remedy="wait until some have begun or were forgotten, send and print less, or ask the "
            "operator for a larger tier",
        )

    def _free_in_s(self, tenant: str) -> float:
        for number, sizes in self._buckets.items():
            if tenant in sizes:
                return max(1.0, self._end_of(number) - steady())
        return _WAIT_S

    def _end_of(self, number: int) -> float:
        return (number + 1) * _BUCKET_S + self._retention_s

    def _has_little_left(self) -> bool:
        if self._disk is None:
            return False
        now = time.monotonic()
        if now - self._read_at > _FRESH_S:
            self._read_at = now
            found = os.statvfs(self._disk)
            floor = min(_MOST_FLOOR_MB, found.f_blocks * found.f_frsize // _MIB // 10)
            floor = self._least_free_mb or floor
            self._is_low = found.f_bavail * found.f_frsize // _MIB < floor
        return self._is_low

    # -- what waits ------------------------------------------------------------------------

    def wait(self, execution_id: str, tenant: str, size: int) -> None:
        """Count the body of an execution that is going to be on disk until it begins."""
        use = self._tenants.use(tenant)
        use.waiting_bytes += size
        self._waiting[execution_id] = (use, size)

    def waits_no_more(self, execution_id: str) -> None:
        """Stop counting the execution's body: it is not on disk, or not any longer; idempotent."""
        use, size = self._waiting.pop(execution_id, (None, 0))
        if use is not None:
            use.waiting_bytes -= size

    # -- what is kept ----------------------------------------------------------------------

    def keep(self, tenant: str, size: int, ended_at: float) -> None:
        """Count a kept thing of `size` bytes that ended at `ended_at` (seconds since the epoch)."""
        if size > FREE_BYTES:
            self.keep_more(tenant, size - FREE_BYTES, ended_at)

    def keep_more(self, tenant: str, size: int, ended_at: float) -> None:
        """Count `size` more bytes of a kept thing, without a free part."""
        self._tenants.use(tenant).kept_bytes += size
        self._buckets.setdefault(int(ended_at // _BUCKET_S), Counter())[tenant] += size

    def restore(self, rows: Iterable[KeptRow]) -> None:
        """Count what an earlier server kept."""
        for row in sorted(rows, key=lambda each: each.ended_at):
            self.keep_more(row.tenant, row.size, row.ended_at)

    def expire(self) -> None:
        """Stop counting what the store is about to delete."""
        now = steady()
        while self._buckets and self._end_of(next(iter(self._buckets))) <= now:
            _, sizes = self._buckets.popitem(last=False)
            for tenant, size in sizes.items():
                self._tenants.use(tenant).kept_bytes -= size
