"""Where requests with an idempotency key went: a repeat goes to the same node, which knows it.

In this gateway's memory, where it is alone; `agreed.claims` is the same for several. The
invariant: a key has one node and one id at a time, and goes to another node only after it is
certain that nothing began, or ever will, under that id.
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
    """Where a key's request went."""

    node: str
    """The node's name."""
    offered: str
    """The id under which the node was asked; a repeat is asked for under the same."""
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
        return _InMemory(self, caller.principal.tenant, key)

    def of(self, tenant: str, key: str) -> Went | None:
        """Return where the request of a tenant's key went; None: nowhere."""
        found = self._went.get((tenant, key))
        if found is None or _now_s() - found.at_s > _KEPT_S:
            return None
        return found

    def goes(self, tenant: str, key: str, node: str, offered: str) -> Went:
        """Note the node that is asked, and the id under which it is."""
        now_s = _now_s()
        self._went[tenant, key] = went = Went(node, offered, now_s)
        self._went.move_to_end((tenant, key))
        while len(self._went) > _MOST or now_s - next(iter(self._went.values())).at_s > _KEPT_S:
            self._went.popitem(last=False)
        return went

    def did_not(self, tenant: str, key: str, offered: str) -> bool:
        """Forget a request that certainly did not begin; False: the key is another id's."""
        found = self._went.get((tenant, key))
        if found is None or found.offered != offered:
            return False
        del self._went[tenant, key]
        return True

    def came(self, tenant: str, key: str) -> None:
        """Count a request with a key that is sent to its node."""
        self.under_way[tenant, key] += 1

    def left(self, tenant: str, key: str) -> None:
        """Count one no longer."""
        self.under_way[tenant, key] -= 1
        if not self.under_way[tenant, key]:
            del self.under_way[tenant, key]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


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

    The request that brought the key to a node gives it up while no other one with the key is there:
    that one may begin what this one did not. Any request does once the node has refused the id for
    ever, since all of them are asked for under it.
    """

    wants_body, may_move = False, True

    def __init__(self, replays: Replays, tenant: str, key: str) -> None:
        self._replays = replays
        self._tenant, self._key = tenant, key
        self._is_under_way = False
        self._went = replays.of(tenant, key)
        self.node = "" if self._went is None else self._went.node
        self.is_first = self._went is None

    @property
    def age_s(self) -> float:
        """Seconds since the id was first offered to its node."""
        return 0.0 if self._went is None else _now_s() - self._went.at_s

    def take_body(self, pieces: list[bytes] | None) -> None:
        """Leave it: the node compares."""

    async def goes(self, node: str, offered: str) -> str:
        """Note the node; empty: another request with the key went to another one meanwhile."""
        known = self._replays.of(self._tenant, self._key)
        if known is None:
            known = self._replays.goes(self._tenant, self._key, node, offered)
            self.is_first = True
        elif self._went is None or known.offered != self._went.offered:
            self.is_first = False
        self._went = known
        if known.node != node:
            self.node = known.node
            return ""
        if not self._is_under_way:
            self._is_under_way = True
            self._replays.came(self._tenant, self._key)
        return known.offered

    async def did_not(self, *, is_settled: bool = False) -> bool:
        """Forget the node that was asked, unless something may have begun there by the key."""
        went = self._went
        if went is None:
            return False
        is_alone = self.is_first and self._replays.under_way[self._tenant, self._key] <= 1
        if not (is_alone or is_settled):
            self.node = went.node
            return False
        is_given_up = self._replays.did_not(self._tenant, self._key, went.offered)
        if is_given_up or is_settled:  # what is settled and no longer there has moved
            self._went, self.node = None, ""
        return is_given_up or is_settled

    def leave(self) -> None:
        """Count this request no longer."""
        if self._is_under_way:
            self._is_under_way = False
            self._replays.left(self._tenant, self._key)
