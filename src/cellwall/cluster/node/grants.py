"""What a node may hold of its tenants' quotas, as gateways grant it: memory, CPUs and files.

The queue counts as on a server alone, against what is granted here; what lacks room is said to the
gateways, which ask for it and wait (`/node/wants`). The invariants: until a gateway has granted
something nothing is held of a quota; of two words of gateways the one of the later change counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.engine.scheduling.admission import Cost
from cellwall.model.errors import CapacityError, UsageError
from cellwall.server.http.endpoint import Answer, Endpoint

if TYPE_CHECKING:
    from cellwall.engine.scheduling.fair_queue import FairQueue
    from cellwall.server.core.request import Request
    from cellwall.server.state import State

_WAITS_S = 5.0
"""A sandbox waits so long for the word of a gateway."""
_LONGEST_S = 1.0
"""An answer to a gateway that wants to hear of wants is held back for at most so long."""
_ANOTHER_S = 0.3
"""A want that was told to one gateway is told again after so long: that one may be gone."""
_NO_MORE_S = 2.0
"""An unchanged want is told again so long after a gateway's last word: what other nodes give back
nothing tells here."""
_MOST_BYTES = 64 << 10
_MOST_ITEMS = 64
"""Waiting one-shots of a tenant that are asked for together."""
_MOST_TENANTS = 200
"""Tenants whose wants are told together; the next answer has those of the others."""


class _Word(NamedTuple):
    """What a gateway says of one tenant."""

    tenant: str
    change: int
    granted: Cost | None
    """None: what is not held is to be given back."""
    is_final: bool
    """Whether there is no more to grant now."""


class _Lack(NamedTuple):
    """A tenant that lacks room."""

    until_s: float = 0.0
    """Until then its want is some gateway's to grant."""
    told: dict[str, Any] | None = None
    """The want that was told last."""
    is_final: bool = False
    """Whether there was no more to grant for it: another want is told at once."""


class NodeGrants:
    """See the module."""

    def __init__(self) -> None:
        self._queue: FairQueue | None = None
        self._generation = ""
        self._changes: dict[str, int] = {}
        """The latest change of each tenant's grants of which a gateway has told."""
        self._lacking: dict[str, _Lack] = {}
        """Tenants that lack room, those first that were told longest ago."""
        self._rooms: dict[str, list[Cost]] = {}
        """What sandboxes need that wait until it is known whether there is room."""
        self._words: dict[str, asyncio.Future[bool]] = {}
        self._news = asyncio.Event()

    def open(self, state: State, generation: str) -> None:
        """Take part in one server; `generation` is the word for this run of it."""
        self._queue, self._generation = state.queue, generation

    def begin(self) -> None:
        """Hold only what is granted from now on: a gateway counts over all nodes."""
        queue = self._queue
        if queue is not None and queue.room != self.room:
            queue.room = self.room
            queue.tenants.grant(self._lacks)

    def _lacks(self, tenant: str) -> None:
        if tenant not in self._lacking:
            self._say_again(tenant)

    def _say_again(self, tenant: str) -> None:
        """Tell at once what a tenant lacks."""
        self._lacking[tenant] = _Lack()
        self._news.set()

    async def room(self, tenant: str, cost: Cost) -> None:
        """Wait until there is room for a cost, or a gateway has said that there is none.

        Raises UsageError for a cost that can never fit, CapacityError if no gateway says anything.
        """
        use = self._of().tenants.use(tenant)
        use.check_ever(cost)
        if use.lacks(cost) is None:
            return
        waiting = self._rooms.setdefault(tenant, [])
        waiting.append(cost)
        if self._lacking.get(tenant, _Lack()).is_final:  # that was said to others
            self._say_again(tenant)
        try:
            async with asyncio.timeout(_WAITS_S):
                while use.lacks(cost) is not None and not await self._word(tenant):
                    pass
        except TimeoutError:
            raise CapacityError(
                f"quota {use.lacks(cost)}: no gateway has said whether there is room",
                retry_after_s=2.0,
                remedy="try again; the operator sees to the directory of the gateways",
            ) from None
        finally:
            waiting.remove(cost)
            if not waiting:
                self._rooms.pop(tenant, None)

    async def _word(self, tenant: str) -> bool:
        """Wait for a gateway's next word on a tenant; report whether it has no more to grant."""
        if tenant not in self._words:
            self._words[tenant] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._words[tenant])

    def _of(self) -> FairQueue:
        assert self._queue is not None  # noqa: S101  a server without it serves nothing
        return self._queue

    # -- of gateways -----------------------------------------------------------------------

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The routes by which gateways hear of wants and grant, which they alone reach."""
        return (
            Endpoint(
                "GET",
                "/node/wants",
                self._say,
                "What tenants lack here of their quotas, for gateways",
                {200: Answer("By tenant; held back while there is nothing.")},
                access="public",
                tags=("server",),
            ),
            Endpoint(
                "POST",
                "/node/grants",
                self._take,
                "Take what a tenant may hold here of its quotas, from gateways",
                {200: Answer("What is held here.")},
                access="public",
                tags=("server",),
            ),
        )

    async def _say(self, request: Request) -> None:
        """Answer with what is wanted, as soon as something is."""
        until_s = time.monotonic() + _LONGEST_S
        wants = self._wants()
        while not wants and (left_s := until_s - time.monotonic()) > 0:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _ANOTHER_S) if self._lacking else left_s):
                    await self._news.wait()
            wants = self._wants()
        await request.answer({"generation": self._generation, "wants": wants})

    def _wants(self) -> list[dict[str, Any]]:
        """Return what tenants want that no other gateway was told of a moment ago."""
        now_s, found = time.monotonic(), list[dict[str, Any]]()
        for tenant, lack in list(self._lacking.items()):
            if len(found) == _MOST_TENANTS:
                break
            if lack.until_s > now_s and not lack.is_final:
                continue
            want = self._want(tenant)
            if lack.until_s > now_s and want == lack.told:
                continue
            del self._lacking[tenant]
            if want is not None:  # behind those that were not told yet
                self._lacking[tenant] = _Lack(now_s + _ANOTHER_S, want)
                found.append(want)
        return found

    def _want(self, tenant: str) -> dict[str, Any] | None:
        """Return what a tenant wants to hold; None: it lacks nothing any more."""
        queue = self._of()
        use = queue.tenants.use(tenant)
        items = [*self._rooms.get(tenant, ()), *queue.waiting_of(tenant, _MOST_ITEMS)]
        if not items or use.lacks(items[0]) is None:
            return None
        most = sum(items, use.held)
        return {"tenant": tenant, "least": _said(use.held + items[0]), "most": _said(most)}

    async def _take(self, request: Request) -> None:
        """Take a word, unless a later one has come before it."""
        word = _word_of(await request.body(_MOST_BYTES), self._generation)
        self.begin()
        queue = self._of()
        use = queue.tenants.use(word.tenant)
        is_news = word.change > self._changes.get(word.tenant, 0) or (
            word.granted is None and word.change == self._changes.get(word.tenant, 0)
        )
        if is_news:
            self._changes[word.tenant] = word.change
            use.granted = use.held if word.granted is None else word.granted
        if word.granted is not None:
            self._tell(word)
        await request.answer({"is_news": is_news, "held": _said(use.held)})

    def _tell(self, word: _Word) -> None:
        """Let what waits look again."""
        queue, tenant = self._of(), word.tenant
        queue.look_again()
        lack = self._lacking.get(tenant)
        if lack is not None and word.is_final:
            until_s = time.monotonic() + _NO_MORE_S
            self._lacking[tenant] = lack._replace(until_s=until_s, is_final=True)
        elif lack is not None:  # what is still lacking is told at once
            self._say_again(tenant)
        waiting = self._words.pop(tenant, None)
        if waiting is not None:
            waiting.set_result(word.is_final)


def _said(cost: Cost) -> list[int]:
    """Return a cost as gateways have it: MiB, thousandths of a CPU, MiB of files."""
    return [cost.memory_mb, math.ceil(round(cost.cpus * 1000, 3)), cost.disk_mb]


def _word_of(body: bytes, generation: str) -> _Word:
    """Return what a gateway says. Raises UsageError, also if it says it to an earlier run."""
    try:
        said = json.loads(body)
        is_of_this = said["generation"] == generation
        given = said["granted"]
        granted = None
        if given is not None:
            memory_mb, cpus_m, file_mb = map(int, given)
            granted = Cost(memory_mb, 0, file_mb, cpus_m / 1000)
        word = _Word(str(said["tenant"]), int(said["change"]), granted, bool(said["is_final"]))
    except (ValueError, KeyError, TypeError):
        raise UsageError("grants: not what a gateway says", remedy="use the same version") from None
    if not is_of_this:
        raise UsageError(
            "grants: they are for an earlier run of this node", remedy="read what is granted again"
        )
    return word
