"""Where requests with an idempotency key went: a repeat goes to the same node, which knows it.

In this gateway's memory, where it is alone; `agreed.claims` is the same for several. The
invariant: while a key is held, no second node is asked to begin its request.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.wire.heads import RequestHead

_MOST = 200_000
_KEPT_S = 86_400.0
"""A node knows a key for so long, too (`server.executions.idempotency`)."""


class Use(Protocol):
    """The use of a key by one request, or that of none."""

    node: str
    """Name of the node to which a request with the key went before; empty: to none."""
    wants_body: bool
    """Whether the body is to be whole before a node is asked."""
    may_move: bool
    """Whether another node can be asked where the one that had it certainly never begins."""
    is_first: bool
    """Whether no other request with the key came before, as far as that is known."""

    @property
    def age_s(self) -> float:
        """Seconds since the id was first offered to its node."""

    def take_body(self, pieces: list[bytes] | None) -> None:
        """Take the whole body; None: it is longer than what is kept."""

    async def goes(self, node: str, offered: str) -> str:
        """Note the node that is asked now; return the id to offer; empty: another node has it."""

    async def did_not(self, *, is_settled: bool = False) -> bool:
        """Give the key up: this request did not begin; report whether nothing else can have.

        `is_settled`: the node has said that nothing ever begins under the id.
        """

    def leave(self) -> None:
        """Use the key no longer: the request has its answer, or its client has left."""


class Went(NamedTuple):
    """Where a request went."""

    node: str
    """The node's name."""
    at_s: float


class Replays:
    """See the module."""

    def __init__(self) -> None:
        self._went: OrderedDict[tuple[str, str], Went] = OrderedDict()
        self.under_way: Counter[tuple[str, str]] = Counter()
        """Requests with each key that were sent to its node and have no end yet."""

    def use(self, head: RequestHead, caller: Caller | None) -> Use:
        """Return the use of a request's key."""
        key = head.first(b"idempotency-key")
        if not key or caller is None:
            return NO_KEY
        now_s = asyncio.get_running_loop().time()
        return _InMemory(self, caller.principal.tenant, key, now_s)

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

    def came(self, tenant: str, key: str) -> None:
        """Count a request with a key that is sent to its node."""
        self.under_way[tenant, key] += 1

    def left(self, tenant: str, key: str) -> None:
        """Count one no longer."""
        self.under_way[tenant, key] -= 1
        if not self.under_way[tenant, key]:
            del self.under_way[tenant, key]


class _NoKey:
    """The use of no key."""

    node, age_s = "", 0.0
    wants_body = may_move = False
    is_first = True

    def take_body(self, pieces: list[bytes] | None) -> None:
        """Leave it."""

    async def goes(self, node: str, offered: str) -> str:
        """Note nothing."""
        return offered

    async def did_not(self, *, is_settled: bool = False) -> bool:
        """Note nothing: no other request asks for the same."""
        return True

    def leave(self) -> None:
        """Note nothing."""


NO_KEY: Use = _NoKey()


class _InMemory:
    """The use of a key that this gateway alone remembers.

    Only the request that brought the key to a node gives it up, and only while no other one with
    the key is there: that one may begin what this one did not.
    """

    wants_body = may_move = False
    age_s = 0.0

    def __init__(self, replays: Replays, tenant: str, key: str, now_s: float) -> None:
        self._replays = replays
        self._tenant, self._key = tenant, key
        self._is_under_way = False
        self.node = replays.of(tenant, key, now_s)
        self.is_first = not self.node

    def take_body(self, pieces: list[bytes] | None) -> None:
        """Leave it: the node compares."""

    async def goes(self, node: str, offered: str) -> str:
        """Note the node; empty: another request with the key went to another one meanwhile."""
        now_s = asyncio.get_running_loop().time()
        known = self._replays.of(self._tenant, self._key, now_s)
        if known and known != node:
            self.node, self.is_first = known, False
            return ""
        if known and not self._is_under_way:
            self.is_first = False
        self._replays.goes(self._tenant, self._key, node, now_s)
        if not self._is_under_way:
            self._is_under_way = True
            self._replays.came(self._tenant, self._key)
        return offered

    async def did_not(self, *, is_settled: bool = False) -> bool:
        """Forget the node that was asked, unless something may have begun there by the key."""
        now_s = asyncio.get_running_loop().time()
        node = self._replays.of(self._tenant, self._key, now_s)
        if not self.is_first or self._replays.under_way[self._tenant, self._key] > 1:
            self.node = node
            return False
        self._replays.did_not(self._tenant, self._key, node)
        return True

    def leave(self) -> None:
        """Count this request no longer."""
        if self._is_under_way:
            self._is_under_way = False
            self._replays.left(self._tenant, self._key)
