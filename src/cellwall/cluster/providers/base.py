"""What every provider does: it says at which addresses the nodes are.

Followed by `apps.cluster`, which hands what it says to the gateway's roster. The invariant: a
provider only finds nodes. It never says that one is lost: what it cannot ask holds as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from cellwall.cluster.gateway.wire.links import Address

Take = Callable[[Collection[Address]], None]
"""Takes the addresses of all nodes there are now."""


class Provider(Protocol):
    """See the module."""

    async def follow(self, take: Take) -> None:
        """Call `take` once the nodes are known, and again with each change; never return."""
