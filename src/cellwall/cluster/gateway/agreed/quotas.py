"""Quotas over nodes: a tenant's sandboxes are counted in the directory before they are made.

What has ended is noticed when it matters: before a refusal the nodes are asked which sandboxes
there are, and the count is set right. The invariant: a sandbox is counted before a node is asked
for it, and no longer only once the node has said that it has ended or never begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cellwall.cluster.gateway.agreed.copies import copies_in
from cellwall.cluster.gateway.callers import said_of
from cellwall.cluster.gateway.wire.asking import ask
from cellwall.engine.scheduling.quotas import exceeded
from cellwall.model.errors import CapacityError
from cellwall.model.ids import new_id
from cellwall.server.auth.keys import Principal

if TYPE_CHECKING:
    from cellwall.cluster.directory.sums import Row, Sums
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.cluster.gateway.wire.asking import Whole
    from cellwall.cluster.gateway.wire.heads import Headers
    from cellwall.engine.scheduling.quotas import Tenants

_ASK_S = 3.0
_YOUNG_S = 2.0
"""A sandbox that is counted for less may still be on its way to its node."""
_COPIED_S = 600.0
"""No copy takes longer; the place for one is given back then."""
_LIVE = b"/sandboxes?state=live&limit=1000"
_BETWEEN_S = 0.1
"""A tenant's nodes are not asked more often, however many of its requests would be refused."""


class Quotas:
    """See the module."""

    def __init__(self, sums: Sums, tenants: Tenants, book: Book) -> None:
        """`tenants` knows each one's quotas, `book` the nodes."""
        self._sums = sums
        self._tenants = tenants
        self._book = book
        self._rounds: dict[str, asyncio.Task[set[str]]] = {}
        """The next look at a tenant's sandboxes, which has not begun."""
        self._turns: dict[str, asyncio.Lock] = {}

    async def take(self, tenant: str, sandbox_id: str, node: str) -> None:
        """Count a sandbox that is about to be made. Raises QuotaExceeded, StoreBusy."""
        most = self._tenants.use(tenant).quotas.sandboxes
        if most is None or await self._sums.reserve(tenant, sandbox_id, node, most):
            return
        await self.look(tenant)
        if not await self._sums.reserve(tenant, sandbox_id, node, most):
            raise exceeded("sandboxes", most, most, "delete one")

    async def give_back(self, tenant: str, sandbox_id: str) -> None:
        """Count a sandbox no longer that has ended, or was not made."""
        if self._tenants.use(tenant).quotas.sandboxes is not None:
            await self._sums.give_back(tenant, sandbox_id)

    @contextlib.asynccontextmanager
    async def copies(
        self, tenant: str, verb: str, body: bytes, asked: Callable[[], str]
    ) -> AsyncIterator[None]:
        """Hold places for copies whose ids a node will draw, until they are counted themselves.

        `verb` and `body`: of the request, which forks or restores; `asked` returns the name of the
        node that was asked, empty if none was. Places stay counted, for minutes, where that node
        does not say afterwards what it has. Raises UsageError, QuotaExceeded if there is no room
        for all of them, StoreBusy.
        """
        if self._tenants.use(tenant).quotas.sandboxes is None:
            yield
            return
        places = [new_id() for _ in range(copies_in(body) if verb == "fork" else 1)]
        try:
            for each in places:
                await self.take(tenant, each, "")
            yield
        finally:
            with contextlib.suppress(CapacityError):  # those that stay are given back when old
                node = asked()
                if not node or node in await self.look(tenant):
                    await asyncio.gather(*(self._sums.give_back(tenant, each) for each in places))

    async def look(self, tenant: str) -> set[str]:
        """Set a tenant's count right by what its nodes say from now on; return which have said it.

        Requests that come together share a look that begins after all of them.
        """
        if tenant not in self._rounds:
            loop = asyncio.get_running_loop()
            self._rounds[tenant] = loop.create_task(self._next_look(tenant))
        return await asyncio.shield(self._rounds[tenant])

    async def _next_look(self, tenant: str) -> set[str]:
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        async with turn:
            await asyncio.sleep(_BETWEEN_S)  # more of them join
            del self._rounds[tenant]
            rows = await self._sums.of(tenant)
            names = await asyncio.gather(
                *(self._look_at(tenant, node, rows) for node in self._book.answering())
            )
            for row in rows:
                is_left = not row.node and row.age_s > _COPIED_S
                if row.node in self._book.lost or is_left:
                    await self._sums.give_back(tenant, row.id)
        return set(names) - {""}

    async def _look_at(self, tenant: str, node: Node, rows: list[Row]) -> str:
        """Set the count of one node's sandboxes right; return its name if it said what it has."""
        name = node.name
        asked = _Asked(node, said_of(Principal(tenant, "gateway", "run"), self._tier(tenant)))
        try:
            live = await asked.live()
            for each in live - {row.id for row in rows}:
                await self._sums.adopt(tenant, each, node.name)
            for row in rows:
                if row.node == node.name and row.id not in live and await asked.is_over(row):
                    await self._sums.give_back(tenant, row.id)
        except (OSError, ValueError, KeyError):
            return ""  # it counts as it did
        return name

    def _tier(self, tenant: str) -> str:
        return self._tenants.tier(tenant)


class _Asked:
    """A node that is asked about a tenant's sandboxes. All raise OSError, ValueError, KeyError."""

    def __init__(self, node: Node, said: Headers) -> None:
        self._node = node
        self._said = said

    async def live(self) -> set[str]:
        """Return the ids of sandboxes that have not ended."""
        found: set[str] = set()
        after: str | None = ""
        while after is not None:
            more = b"&after=" + quote(after, safe="").encode() if after else b""
            page = _value(await self._answer(_LIVE + more))
            found |= {str(each["id"]) for each in page["sandboxes"]}
            after = page["next"]
        return found

    async def is_over(self, row: Row) -> bool:
        """Report whether a sandbox that is not among those has ended, or never begins."""
        shown = await self._answer(b"/sandboxes/" + row.id.encode())
        if shown.status == 200:
            return bool(json.loads(shown.body)["status"] == "stopped")
        if row.age_s < _YOUNG_S:
            return False
        settled = _value(await self._answer(b"/node/ids/" + row.id.encode()))
        return not settled["has_begun"]

    async def _answer(self, target: bytes) -> Whole:
        async with asyncio.timeout(_ASK_S):
            return await ask(self._node.links, target, self._said)


def _value(answer: Whole) -> dict[str, Any]:
    """Return what an answer says. Raises ConnectionError if it is a refusal."""
    if answer.status != 200:
        raise ConnectionError(f"it answers {answer.status}")
    return dict(json.loads(answer.body))
