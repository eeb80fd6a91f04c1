"""Room for checkpoints: how much of the engine's disk each sandbox and each tenant may take.

Asked by `history` before it writes. The invariant: a sandbox gives back all it took when it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cellwall.model.errors import QuotaExceeded, UsageError


def _no_bound(_tenant: str) -> int | None:
    return None


class HistoryRoom:
    """The room of one engine."""

    def __init__(self, folder: Path, most_mb: int) -> None:
        """Packs lie in `folder`, without names; a sandbox may have `most_mb` MiB, 0 for none."""
        self.folder = folder
        self._most_mb = most_mb
        self._taken: Counter[str] = Counter()
        self.most_mb_of: Callable[[str], int | None] = _no_bound
        """Returns how many MiB all sandboxes of a tenant may have together, None for no bound."""

    def check_permitted(self) -> None:
        """Raise `UsageError` where the operator permits no checkpoints."""
        if not self._most_mb:
            raise UsageError(
                "checkpoint: the operator permits none",
                remedy="ask the operator for the setting history_mb",
            )

    def change(self, tenant: str, before: int, after: int) -> None:
        """Count that a sandbox of `tenant` takes `after` bytes, not `before`.

        Raises `QuotaExceeded`, and counts nothing, if that is more and too much.
        """
        if after > before:
            self._check(tenant, before, after)
        self._taken[tenant] += after - before
        if not self._taken[tenant]:
            del self._taken[tenant]

    def _check(self, tenant: str, before: int, after: int) -> None:
        most_mb = self.most_mb_of(tenant)
        together = self._taken[tenant] + after - before
        if after > self._most_mb << 20:
            whose, bound = "this sandbox", self._most_mb
        elif most_mb is not None and together > most_mb << 20:
            whose, bound = "this tenant", most_mb
        else:
            return
        raise QuotaExceeded(
            "history_mb",
            f"checkpoint: more than the {bound} MiB that checkpoints of {whose} may take",
            retry_after_s=60.0,
            remedy="drop checkpoints, or remove files first",
        )

    def of(self, tenant: str) -> Share:
        """Return the share of a tenant's sandboxes."""
        return Share(self, tenant)

    def taken_mb(self, tenant: str) -> int:
        """Return the MiB that a tenant's checkpoints take now, rounded up."""
        return -(-self._taken[tenant] >> 20) if tenant in self._taken else 0


@dataclass(frozen=True, slots=True)
class Share:
    """The room as one tenant's sandboxes have it."""

    room: HistoryRoom
    tenant: str

    @property
    def folder(self) -> Path:
        """Folder that packs lie in."""
        return self.room.folder

    def check_permitted(self) -> None:
        """Raise `UsageError` where the operator permits no checkpoints."""
        self.room.check_permitted()

    def change(self, before: int, after: int) -> None:
        """Count that a sandbox takes `after` bytes, not `before`. Raises `QuotaExceeded`."""
        self.room.change(self.tenant, before, after)
