"""What the operator decides about one door: a foreign protocol that the server answers, too.

Values only; `apps.doors` knows the protocols. A door that has no section is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cellwall.model.errors import UsageError

_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Settings of one door."""

    port: int | None = None
    """TCP port of its own, without the prefix `/NAME`, for clients that cannot take one; None:
    none."""
    tenant: str | None = None
    """Tenant of requests without a key, for clients that cannot send one; None: those are refused.
    Only where the server listens for this machine alone."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What only this protocol has; docs/doors.md lists it."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a port that is none, or a tenant that has no name."""
        port = self.port
        if port is not None and (isinstance(port, bool) or not 0 <= port <= _LAST_PORT):
            raise UsageError(
                f"settings: doors: port = {port!r} is no TCP port",
                remedy=f"give one from 1 to {_LAST_PORT}, or 0 for any",
            )
        if self.tenant is not None and not (0 < len(self.tenant) <= 64):
            raise UsageError(
                f"settings: doors: tenant = {self.tenant[:80]!r} is no tenant's name",
                remedy="give 1 to 64 characters",
            )
