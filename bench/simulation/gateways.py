"""Gateways of a simulation: each has a book of its own over the same nodes.

The book is the product's; here it is filled with nodes that answer, and asked. Nothing of what it
decides is written a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.wire.links import Address, Links

Behind = TypeVar("Behind")
_FENCE_S, _LOST_AFTER_S = 10.0, 13.0


class Gateway(Generic[Behind]):
    """One gateway over nodes that are `Behind` objects of the simulation."""

    def __init__(self, behind: Sequence[Behind]) -> None:
        """Every node is ready."""
        self.book = Book(_LOST_AFTER_S)
        self.behind: dict[Node, Behind] = {}
        for number, each in enumerate(behind):
            node = Node(Links(Address("10.0.0.1", number), None))
            # As probes would, but for the search for two nodes of one name, which is the square.
            node.told, node.state = Told(f"{number:05}", "g", False, "1", _FENCE_S), "ready"
            self.book.nodes.append(node)
            self.behind[node] = each
