"""Quotas of memory, CPUs and files over nodes: each node holds what gateways have granted it.

A node says what a tenant lacks there (`node.grants`), whichever request it is for. A gateway grants
it of what the directory says is left, or of what other nodes have and do not hold. The invariants:
a node hears of a grant after it is written; what a node gives back it has first promised not to
hold; so all nodes together never hold more than a quota.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.cluster.directory.grants import Amount
from cellwall.cluster.gateway.wire.asking import answer_on, ask
from cellwall.model.errors import CellwallError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cellwall.cluster.directory.grants import Granted, Grants
    from cellwall.cluster.gateway.book import Book, Node
    from cellwall.engine.scheduling.quotas import Quotas, Tenants
    from cellwall.surface.shared.tasks import Tasks

_LOOK_S = 0.2
"""So often a gateway looks which nodes there are."""
_ASK_S = 3.0
_AGAIN_S = 0.2
_TRIES = 16
"""Changes of other gateways in between after which a want is left to the node's next word."""
_MOST = 1 << 40
_WANTS = b"/node/wants"
_GRANTS = b"/node/grants"
_JSON = (b"content-type", b"application/json")
_log = logging.getLogger("cellwall.gateway")


class Want(NamedTuple):
    """What a tenant wants to hold on one node, with what it holds there."""

    tenant: str
    least: Amount
    """For what comes first."""
    most: Amount
    """For all that waits."""


def has_costs(quotas: Quotas) -> bool:
    """Report whether a tier bounds memory, CPUs or files."""
    return any(each is not None for each in _bounds(quotas))


class Granting:
    """See the module. `run` has to be under way."""

    def __init__(
        self,
        grants: Grants,
        tenants: Tenants,
        book: Book,
        tasks: Tasks,
        is_tenant: Callable[[str], bool],
    ) -> None:
        """`is_tenant` reports whether there is a tenant of that name, as a node says it."""
        self._grants = grants
        self._tenants = tenants
        self._book = book
        self._tasks = tasks
        self._is_tenant = is_tenant
        self._followed: set[Node] = set()
        self._turns: dict[str, asyncio.Lock] = {}
        """One want of a tenant at a time: each begins with what the one before has left."""

    async def run(self) -> None:
        """Follow for ever what is wanted on the nodes that there are."""
        while True:
            for node in self._book.answering():
                if node not in self._followed:
                    self._followed.add(node)
                    self._tasks.spawn(self._follow(node))
            await asyncio.sleep(_LOOK_S)

    async def _follow(self, node: Node) -> None:
        try:
            while node in self._book.answering():
                try:
                    generation, wants = await self._wanted(node)
                    words = (self._answer(node, generation, want) for want in wants)
                    await asyncio.gather(*words)
                except (OSError, ValueError, KeyError, TypeError, CellwallError) as error:
                    _log.info("node %s: what it wants is not known: %r", node.name, error)
                    await asyncio.sleep(_AGAIN_S)
        finally:
            self._followed.discard(node)

    async def _wanted(self, node: Node) -> tuple[str, list[Want]]:
        """Return the word for the node's run, and what is wanted there, once something is.

        SECURITY: a node says it; of a tenant that there is not nothing is written down.
        """
        async with asyncio.timeout(_ASK_S):
            answer = await ask(node.links, _WANTS, [])
        said = _value(answer.status, answer.body)
        wants = [
            Want(str(each["tenant"]), _amount(each["least"]), _amount(each["most"]))
            for each in said["wants"]
        ]
        return str(said["generation"]), [each for each in wants if self._is_tenant(each.tenant)]

    async def _answer(self, node: Node, generation: str, want: Want) -> None:
        """Grant what is wanted, or all that there is, and tell the node.

        Raises StoreBusy, and as `_tell`.
        """
        turn = self._turns.setdefault(want.tenant, asyncio.Lock())
        async with turn:
            has_looked = False
            for _ in range(_TRIES):
                granted = await self._grants.of(want.tenant)
                quotas = self._tenants.use(want.tenant).quotas
                amount, is_enough = share(quotas, granted, node.name, want, self._book.lost)
                if not is_enough and not has_looked:
                    has_looked = True
                    await self._look(want.tenant, granted, node)
                    continue
                change = granted.change
                is_written = not is_enough and amount == granted.nodes.get(node.name, Amount())
                if not is_written:
                    change = await self._grants.write(want.tenant, node.name, amount, change)
                if change or is_written:
                    await _tell(node, generation, want.tenant, change, amount, not is_enough)
                    return
                await asyncio.sleep(random.uniform(0, 0.01))  # noqa: S311 - no secret

    async def _look(self, tenant: str, granted: Granted, but: Node) -> None:
        """Have the other nodes give back what they do not hold."""
        others = [each for each in self._book.answering() if each.name in granted.nodes]
        asked = (self._take_back(each, tenant) for each in others if each is not but)
        await asyncio.gather(*asked)

    async def _take_back(self, node: Node, tenant: str) -> None:
        told = node.told
        if told is None:
            return
        for _ in range(_TRIES):
            granted = await self._grants.of(tenant)
            try:
                held = await _tell(node, told.generation, tenant, granted.change, None, False)
            except (OSError, ValueError, KeyError, TypeError):
                return  # it counts as it did
            if held is None:
                continue  # it has heard of a later change
            if held == granted.nodes.get(node.name, Amount()):
                return
            if await self._grants.write(tenant, node.name, held, granted.change):
                return


def share(
    quotas: Quotas, granted: Granted, node: str, want: Want, lost: Collection[str]
) -> tuple[Amount, bool]:
    """Return what a node may hold from now on, and whether that is the least that it wants.

    It has never less than before: it may hold that already. What is granted to lost nodes is free.
    """
    found, is_enough = [], True
    others = [each for name, each in granted.nodes.items() if name != node and name not in lost]
    has = granted.nodes.get(node, Amount())
    for at, bound in enumerate(_bounds(quotas)):
        if bound is None:
            found.append(0)
            continue
        free = max(0, bound - sum(each[at] for each in others))
        found.append(max(has[at], min(want.most[at], free)))
        is_enough = is_enough and found[-1] >= want.least[at]
    return Amount(*found), is_enough


def _bounds(quotas: Quotas) -> tuple[int | None, int | None, int | None]:
    """Return the quotas in the units of an amount."""
    cpus_m = None if quotas.cpus is None else int(quotas.cpus * 1000 + 1e-6)
    return quotas.memory_mb, cpus_m, quotas.file_mb


async def _tell(
    node: Node,
    generation: str,
    tenant: str,
    change: int,
    amount: Amount | None,
    is_final: bool,
) -> Amount | None:
    """Tell a node what a tenant may hold there; `amount` None: no more than is held now.

    Return what is held; None: it has heard of a later change. Raises OSError, ValueError, KeyError,
    TypeError.
    """
    said: dict[str, Any] = {
        "generation": generation,
        "tenant": tenant,
        "change": change,
        "granted": amount,
        "is_final": is_final,
    }
    async with asyncio.timeout(_ASK_S):
        link = await node.links.take()
        try:
            body = json.dumps(said).encode()
            answer = await answer_on(link, node.links.address, _GRANTS, [_JSON], body)
        finally:
            node.links.give_back(link)
    told = _value(answer.status, answer.body)
    return _amount(told["held"]) if told["is_news"] else None


def _value(status: int, body: bytes) -> dict[str, Any]:
    """Return what an answer says. Raises ConnectionError if it is a refusal."""
    if status != 200:
        raise ConnectionError(f"it answers {status}")
    return dict(json.loads(body))


def _amount(said: Any) -> Amount:  # noqa: ANN401 - of JSON
    """Return an amount as a node says it. Raises ValueError, TypeError."""
    memory_mb, cpus_m, file_mb = map(int, said)
    if not all(0 <= each < _MOST for each in (memory_mb, cpus_m, file_mb)):
        raise ValueError("an amount is not one")
    return Amount(memory_mb, cpus_m, file_mb)
