"""Facts of a sandbox as E2B's clients know it: what they said of it, and the objects they read.

What they say beyond the fields of every sandbox is kept in its metadata, under names that begin
with `e2b.`, so that it outlives the server wherever the sandbox does. The invariant: such names are
the door's; a client's own metadata is what remains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellwall.client.sandbox import AsyncSandbox

ENVD_VERSION = "0.6.13"
"""Release of E2B's daemon whose behaviour the door has; clients choose their requests by it."""
CLIENT_ID = "cellwall"
PREFIX = "e2b."
_TEMPLATE = "e2b.template"
PUBLIC = "e2b.public"
EVERYWHERE = "0.0.0.0/0"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a client said of a sandbox."""

    template: str
    """Name by which its template, or its snapshot, was asked for."""
    metadata: Mapping[str, str]
    """The client's own."""
    is_public: bool = False
    """Whether its ports are open to requests without a token."""

    @classmethod
    def of(cls, sandbox: AsyncSandbox) -> Facts:
        """Return the facts of a sandbox, also of one that another door made."""
        kept = sandbox.metadata
        own = {key: value for key, value in kept.items() if not key.startswith(PREFIX)}
        return cls(kept.get(_TEMPLATE, sandbox.template), own, kept.get(PUBLIC) == "1")

    def kept(self) -> dict[str, str]:
        """Return the metadata that keeps them."""
        public = {PUBLIC: "1"} if self.is_public else {}
        return {**self.metadata, _TEMPLATE: self.template[:512], **public}


def cpus(sandbox: AsyncSandbox) -> int:
    """Return the number of processors that a sandbox sees."""
    return max(1, math.ceil(sandbox.limits.cpus))


def listed(sandbox: AsyncSandbox) -> dict[str, Any]:
    """Return a sandbox as an entry of a list."""
    facts, limits = Facts.of(sandbox), sandbox.limits
    return {
        "templateID": facts.template,
        "alias": facts.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "startedAt": sandbox.facts["created_at"],
        "endAt": sandbox.facts["expires_at"],
        "cpuCount": cpus(sandbox),
        "memoryMB": limits.memory_mb,
        "diskSizeMB": limits.disk_mb,
        "metadata": dict(facts.metadata),
        "state": sandbox.status,
        "envdVersion": ENVD_VERSION,
    }


def detail(sandbox: AsyncSandbox) -> dict[str, Any]:
    """Return a sandbox with all that is told of a single one."""
    policy = sandbox.network
    network: dict[str, Any] = {"allowPublicTraffic": Facts.of(sandbox).is_public}
    if policy.mode != "open":
        network["denyOut"] = [EVERYWHERE]
    if policy.rules:
        network["allowOut"] = [str(rule) for rule in policy.rules]
    return {
        **listed(sandbox),
        "allowInternetAccess": policy.mode != "none",
        "network": network,
        "lifecycle": {"autoResume": sandbox.facts.get("resume") == "auto", "onTimeout": "kill"},
    }
