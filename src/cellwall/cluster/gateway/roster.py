"""Which nodes a gateway probes: those that a provider names, and those it named and are not over.

Between a provider and the book. The invariant: that an address is no longer named ends nothing. Its
node gets no new work and is probed on, so what it has goes on, until it is lost, is another one, or
never was one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING

from cellwall.cluster.gateway.book import Book, Node

if TYPE_CHECKING:
    from cellwall.cluster.gateway.wire.links import Address
    from cellwall.surface.shared.tasks import Tasks

_log = logging.getLogger("cellwall.gateway")


class Roster:
    """See the module."""

    def __init__(
        self,
        book: Book,
        tasks: Tasks,
        make: Callable[[Address], Node],
        watch: Callable[[Node], Coroutine[object, object, None]],
    ) -> None:
        """`watch` probes a node and returns once it is over."""
        self._book = book
        self._tasks = tasks
        self._make = make
        self._watch = watch

    def take(self, addresses: Collection[Address]) -> None:
        """Take the addresses of all nodes there are now."""
        for node in self._book.nodes:
            is_listed = node.links.address in addresses
            if node.is_listed and not is_listed:
                _log.warning("node %s at %s: no longer named", node.name, node.links.address)
            node.mark(is_listed=is_listed)
        known = {node.links.address for node in self._book.nodes}
        for address in sorted(frozenset(addresses) - known):
            _log.info("node at %s: found", address)
            node = self._make(address)
            self._book.nodes.append(node)
            self._tasks.spawn(self._follow(node))
        self._book.on_change()

    async def _follow(self, node: Node) -> None:
        await self._watch(node)
        self._book.nodes.remove(node)
        node.links.cut()
        node.turn()  # what waits for its next answer hears that there is none
        self._book.on_change()
