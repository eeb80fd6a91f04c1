"""The metrics of a gateway, on a listener of its own as a server's are.

Imported only where metrics are on. Filled by `gateway`, `exchange`, `errand` and `turns` on the
event loop; what others count is read at the moment of a scrape. The list of them is in
docs/cluster.md. Tenants are no labels.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cellwall.server.observability.metrics import Counts, Page, Spread, gauge, total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from cellwall.cluster.gateway.book import Book
    from cellwall.cluster.gateway.work.turns import Turns
    from cellwall.model.errors import CellwallError

_STATES = ("unknown", "ready", "slow", "draining", "unreachable", "refused", "lost")
_NO_KEY = frozenset({"unauthorized", "rate_limited"})
"""Codes of what is refused for want of an accepted key."""


class Tally(Page):
    """All metrics of one gateway."""

    def __init__(self, book: Book, turns: Turns) -> None:
        """Count what the two tell from now on."""
        super().__init__()
        self._book = book
        self._turns = turns
        self._requests = Counts("gateway_requests", "Answered requests.", "kind", "status")
        self._tries = Counts("gateway_tries", "Requests to nodes, by their end.", "end")
        self._waits = Spread("gateway_queue_wait_seconds", "Until its turn, if it had to wait.")
        self._refused_keys = Counts("gateway_refused_keys", "Requests without an accepted key.")
        book.on_try = self._tries.add
        turns.on_waited = self._waits.observe
        self.readings.append(self._now)

    def answered(self, kind: str, status: int) -> None:
        """Count one answer; `kind` is that of the way that it went."""
        self._requests.add(kind, str(status))

    def refused(self, error: CellwallError) -> None:
        """Count a refusal before anything else, if it is for want of a key."""
        if error.code in _NO_KEY:
            self._refused_keys.add()

    def _now(self) -> Iterator[Metric]:
        book, turns = self._book, self._turns
        shown = book.shown()
        states = Counter(str(each["state"]) for each in shown)
        yield gauge(
            "gateway_nodes", "Nodes, by state.", {each: states[each] for each in _STATES}, "state"
        )
        flight = {node.name or str(node.links.address): node.in_flight for node in book.nodes}
        yield gauge("gateway_in_flight", "Requests to a node that are under way.", flight, "node")
        yield total("gateway_losses", "Names of nodes that are lost.", len(book.lost))
        yield gauge("gateway_queued", "New work that waits for its turn.", turns.queued)
        yield gauge("gateway_places_free_ratio", "Free part of all windows.", turns.free_ratio)
        words = "Live sandboxes, of those that the ready nodes may have."
        yield gauge("gateway_sandboxes_fill_ratio", words, _fill(book))


def _fill(book: Book) -> float:
    """Return which part of the sandboxes that ready nodes may have lives; 1 if none is ready."""
    sizes = [node.told.size for node in book.nodes if node.told and node.state == "ready"]
    most = sum(each.most_sandboxes for each in sizes)
    return sum(each.sandboxes for each in sizes) / most if most else 1.0
