"""Where requests with an idempotency key went: a repeat goes to the same node, which knows it.

In this gateway's memory: with several gateways a repeat has to come to the same one. The
invariant: while a key is held, no second node is asked to begin its request.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

_MOST = 200_000
_KEPT_S = 600.0
"""A node knows a key for so long, too (`retention_s`)."""


class Went(NamedTuple):
    """Where a request went."""

    node: str
    """The node's name."""
    at_s: float


class Replays:
    """See the module."""

    def __init__(self) -> None:
        self._went: OrderedDict[tuple[str, str], Went] = OrderedDict()

    def of(self, tenant: str, key: str, now_s: float) -> str:
        """Return the node that has a tenant's key; empty: none."""
        found = self._went.get((tenant, key))
        if found is None or now_s - found.at_s > _KEPT_S:
            return ""
        return found.node

    def goes(self, tenant: str, key: str, node: str, now_s: float) -> None:
        """Note the node that is asked now."""
        self._went[tenant, key] = Went(node, now_s)
        self._went.move_to_end((tenant, key))
        while len(self._went) > _MOST or now_s - next(iter(self._went.values())).at_s > _KEPT_S:
            self._went.popitem(last=False)

    def did_not(self, tenant: str, key: str, node: str) -> None:
        """Note that it certainly did not begin there."""
        found = self._went.get((tenant, key))
        if found is not None and found.node == node:
            del self._went[tenant, key]
