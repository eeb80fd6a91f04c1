"""The ids that gateways offer for new work, and what a node says of one when a gateway asks.

A gateway whose connection broke asks whether its request began. The invariant: an id of which the
node has said that it did not begin never begins afterwards, however late its request comes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from cellwall.cluster.node.lent import Lent
from cellwall.server.core.errors import HttpError
from cellwall.server.http.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.store.records.rows import ExecutionRow

_MOST = 100_000
"""Ids that are kept as refused; each stands for a connection that broke."""


_CUT = frozenset({"interrupted", "cancelled"})
"""Verdicts of programs that the end of a server has ended."""


class Offers:
    """The offers of one server's run."""

    def __init__(self) -> None:
        self._under_way: WeakKeyDictionary[Request, str] = WeakKeyDictionary()
        """The id of each; repeats under one idempotency key have the same."""
        self._refused: OrderedDict[str, None] = OrderedDict()
        self.lent = Lent()
        """The secrets that gateways gave for what may begin."""

    def take(self, request: Request, offered: str) -> None:
        """Note a request that would begin something under an id. Raises HttpError."""
        if offered in self._refused:
            raise HttpError(
                503,
                "capacity",  # by which a gateway knows that another node can have it
                f"id {offered[:40]}: a gateway was told that it did not begin",
                remedy="send it again under another id",
                headers={"retry-after": "1"},
            )
        self._under_way[request] = offered
        request.origin.offered_id = _id_of(offered)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The route by which gateways ask, which they alone reach."""
        return (
            Endpoint(
                "GET",
                "/node/ids/{offered}",
                self._settle,
                "Whether anything began under an id, for gateways",
                {200: Answer("Whether it did, is kept, and goes on; if not, it never will.")},
                access="public",
                tags=("server",),
            ),
        )

    async def _settle(self, request: Request) -> None:
        offered = request.params["offered"]
        found = await self._look(request, offered)
        if not found.has_begun:  # nothing was awaited since the last look
            self._refuse(offered)
        await request.answer(
            {
                "has_begun": found.has_begun,
                "is_gone": found.has_begun and not found.is_kept,
                "goes_on": found.goes_on,
                "knows_s": request.state.replays.known_s,
            }
        )

    async def _look(self, request: Request, offered: str) -> _Found:
        """Return what the node knows of an id.

        What has ended is kept for some minutes (`retention_s`), an idempotency key for a day: where
        the gateway names it, the key says what it made.
        """
        state, key = request.state, request.headers.get("idempotency-key", "")
        own = _id_of(offered)
        row = await state.ledger.find(own)
        has_begun = False
        if key and request.principal is not None:
            has_begun = await state.replays.made(request.owner, key, own)
        is_kept = row is not None or state.executions.has(own) or state.sandboxes.has(own)
        is_kept |= offered in self._under_way.values()
        return _Found(has_begun or is_kept, is_kept, goes_on(row))

    def _refuse(self, offered: str) -> None:
        self._refused[offered] = None
        if len(self._refused) > _MOST:
            self._refused.popitem(last=False)


class _Found(NamedTuple):
    """What a node knows of an id."""

    has_begun: bool
    is_kept: bool
    """Whether what it stands for is here still."""
    goes_on: bool


def _id_of(offered: str) -> str:
    """Return the id of what an offer is for; a program of gateways has an offer for each try."""
    return offered.partition(".")[0]


def goes_on(row: ExecutionRow | None) -> bool:
    """Report whether a program waits, runs, or has an answer of its own, also of an earlier server.

    `row`: what is on disk of it; None: nothing is.
    """
    if row is None:
        return False
    return row.answer is None or row.answer.get("verdict") not in _CUT
