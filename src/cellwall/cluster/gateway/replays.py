"""Where requests with an idempotency key went: a repeat goes to the same node, which knows it.

In this gateway's memory, where it is alone; `agreed.claims` is the same for several. The
invariant: while a key is held, no second node is asked to begin its request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.wire.heads import RequestHead

_MOST = 200_000
_KEPT_S = 600.0
"""A node knows a key for so long, too (`retention_s`)."""


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


class Went(NamedTuple):
    """Where a request went."""

    node: str
    """The node's name."""
    at_s: float


class Replays:
    """See the module."""

    def __init__(self) -> None:
        self._went: OrderedDict[tuple[str, str], Went] = OrderedDict()

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


NO_KEY: Use = _NoKey()


class _InMemory:
    """The use of a key that this gateway alone remembers."""

    wants_body = may_move = False
    is_first, age_s = True, 0.0

    def __init__(self, replays: Replays, tenant: str, key: str, now_s: float) -> None:
        self._replays = replays
        self._tenant, self._key = tenant, key
        self._asked = ""
        self.node = replays.of(tenant, key, now_s)

    def take_body(self, pieces: list[bytes] | None) -> None:
        """Leave it: the node compares."""

    async def goes(self, node: str, offered: str) -> str:
        """Note the node."""
        self._asked = node
        now_s = asyncio.get_running_loop().time()
        self._replays.goes(self._tenant, self._key, node, now_s)
        return offered

    async def did_not(self, *, is_settled: bool = False) -> bool:
        """Forget the node that was asked."""
        self._replays.did_not(self._tenant, self._key, self._asked)
        return True
