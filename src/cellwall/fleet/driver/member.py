"""Member: one node as its driver knows it; whether it is there, and what becomes of its tickets.

    opening ──▶ ready ◀──▶ unreachable ──▶ lost
       └──▶ unfit   └───────────────────────▲

Its own pings decide, because Ray takes a minute. The invariant: `lost` is said only once the node's
process is known to have ended, or when its lease has been over for `MARGIN_S` seconds; after that
it is final, and nothing of that name is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cellwall.fleet.driver.courier import Courier
from cellwall.fleet.driver.link import NoAnswer, NodeGone
from cellwall.fleet.driver.placing import Room
from cellwall.fleet.node.lease import boot_s
from cellwall.fleet.wire.failures import raised
from cellwall.fleet.wire.items import Json, encoded
from cellwall.model.errors import CellwallError, HostUnsupported, NodeLost

if TYPE_CHECKING:
    from cellwall.fleet.driver.link import Link
    from cellwall.fleet.driver.ticket import Ticket
    from cellwall.surface.shared.tasks import Tasks

State = Literal["opening", "ready", "unreachable", "lost", "unfit"]

MARGIN_S = 3.0
"""Seconds after the end of a lease until the loss is told: the node's guard kills after
`fence.HARD_S`, and the kernel ends what was below."""
_PINGS = 20
"""Number of pings during one lease."""
_MISSED = 5
"""Number of pings without an answer after which a node is unreachable."""
_GONE_S = 1.0
"""Seconds for the kernel to end the sandboxes of a process that has ended."""
_LEDGER_S = 8.0
_LEAST_LEDGER_S = 1.0
"""Seconds for a task that reads a ledger, for which Ray starts a process. At the end of a lease
there is less time for it: a loss is told in time, if need be without."""
_CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a member tells its fleet."""

    on_change: Callable[[], None]
    """There is more room, or a state has changed."""
    on_unbegun: Callable[[Ticket], None]
    """Nothing of that ticket has begun; another node may do it."""


class Member:
    """One node of a fleet."""

    def __init__(
        self,
        name: str,
        where: str,
        link: Link,
        tasks: Tasks,
        tell: Callbacks,
        clock: Callable[[], float] = boot_s,
    ) -> None:
        """`where`: the node's address, for messages. `clock` also counts while machines sleep."""
        self._clock = clock
        self.name = name
        self.where = where
        self.is_near = False
        self.state: State = "opening"
        self.error: CellwallError | None = None
        """Why it is unfit or lost."""
        self.cpus = 0
        self.running = 0
        """Number of items under way, as of its last answer."""
        self.sandboxes: set[str] = set()
        """Ids of the sandboxes that were made there and not closed."""
        self._at_once = 1
        self._ledger = ""
        self._fence_s = 0.0
        self._link = link
        self._tasks = tasks
        self._tell = tell
        self._heard = 0
        self._heard_at = 0.0
        self._has_doubt = False
        self._is_settling = False
        self._gone = False
        self._next = asyncio.Event()
        """Whether the next ping should not wait for its time."""
        self.courier = Courier(name, link, tasks, tell.on_change, tell.on_unbegun, self._on_trouble)

    @property
    def room(self) -> Room:
        """The node as a place for programs."""
        return Room(self.name, self.courier.load, self._at_once, self.is_near)

    @property
    def is_final(self) -> bool:
        """Whether it is lost or unfit, for ever."""
        return self.state in ("lost", "unfit")

    # -- life ------------------------------------------------------------------------------

    async def open(self, wishes: Json) -> None:
        """Start it; it is ready or unfit afterwards."""
        self._fence_s = wishes["fence_s"]
        try:
            facts = json.loads(await self._link.open(encoded({**wishes, "name": self.name})))
            if "failure" in facts:
                raise raised(facts["failure"], self.label)
        except CellwallError as error:
            self._end("unfit", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, callers wait for the state
            self._end(
                "unfit",
                HostUnsupported(
                    "node",
                    f"node {self.label}: it did not start: {error!r}",
                    remedy="look whether that machine has cellwall: pip install 'cellwall[ray]'",
                ),
            )
        else:
            self.cpus, self._at_once = facts["cpus"], facts["at_once"]
            self._ledger = facts["ledger"]
            self._heard_at = self._clock()
            self._become("ready")
            self._tasks.spawn(self._live())

    @property
    def label(self) -> str:
        """Name and address."""
        return f"{self.name} ({self.where})"

    async def _live(self) -> None:
        """Ping it until it is lost."""
        number = 0
        interval = self._fence_s / _PINGS
        while not self.is_final:
            number += 1
            self._tasks.spawn(self._ping(number))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._next.wait()
            self._next.clear()
            silent_s = self._clock() - self._heard_at
            if self._gone:
                await asyncio.sleep(_GONE_S)
                most_s = self._fence_s + MARGIN_S - silent_s - _GONE_S
                begun = await self._begun(min(max(most_s, _LEAST_LEDGER_S), _LEDGER_S))
                await self._lose("its process has ended", begun)
            elif silent_s > self._fence_s + MARGIN_S:
                await self._lose(f"it has not answered for {silent_s:.0f} s", None)
            elif silent_s > _MISSED * interval:
                self._doubt()

    async def _ping(self, number: int) -> None:
        message = encoded({"number": number, "heard": self._heard})
        sent_at = self._clock()
        try:
            facts = json.loads(await self._link.ping(message))
        except NoAnswer as error:
            self._on_trouble(error)
            return
        if facts.get("over"):  # it was fenced, and ends: its sandboxes may be there still
            self._doubt()
            return
        if number > self._heard:
            self._heard, self._heard_at = number, self._clock()
            if self._heard_at - sent_at > self._fence_s / _PINGS:
                self._next.set()  # its lease is short by now: tell it at once that it was heard
        self.running = facts["running"]
        if self._has_doubt and not self.is_final and not self._is_settling:
            await self._settle()

    async def _settle(self) -> None:
        """Learn what has become of every ticket, and be ready again."""
        self._is_settling = True
        self._has_doubt = False
        try:
            async with asyncio.timeout(self._fence_s):
                await self.courier.settle()
        except TimeoutError:
            self._doubt()
        except NoAnswer as error:
            self._on_trouble(error)
        else:
            if not self._has_doubt and not self.is_final:
                self._become("ready")
        finally:
            self._is_settling = False

    def _on_trouble(self, error: NoAnswer) -> None:
        if isinstance(error, NodeGone):
            self._gone = True
            self._next.set()
        self._doubt()

    def _doubt(self) -> None:
        """Give it nothing new, until it answers or is lost."""
        self._has_doubt = True
        if self.is_final:
            return
        for ticket in self.courier.hold():
            self._tell.on_unbegun(ticket)
        if self.state != "unreachable":
            self._become("unreachable")

    # -- its end ---------------------------------------------------------------------------

    async def _begun(self, most_s: float) -> set[str] | None:
        try:
            async with asyncio.timeout(most_s):
                return await self._link.begun(self._ledger)
        except (NoAnswer, TimeoutError):
            return None

    async def _lose(self, why: str, begun: set[str] | None) -> None:
        if self.is_final:
            return
        error = NodeLost(
            f"node {self.label} is lost: {why}",
            remedy="what had begun there may have had effects; run it again if that is right",
        )
        for ticket in self.courier.hold():
            self._tell.on_unbegun(ticket)
        left = self.courier.surrender()
        self.sandboxes.clear()
        self._end("lost", error)
        self._tasks.spawn(self._link.drop())
        for ticket in left:
            is_unbegun = begun is not None and ticket.id not in begun
            if ticket.may_move and (is_unbegun or ticket.on_lost == "retry"):
                self._tell.on_unbegun(ticket)
            else:
                ticket.fail(error)

    def give(self, ticket: Ticket) -> None:
        """Have it do something in a sandbox of its own; fails the ticket if it cannot now."""
        if self.state == "ready":
            self.courier.give(ticket)
        elif self.error is not None:
            ticket.fail(self.error)
        else:
            self._tell.on_unbegun(ticket)

    async def close(self, error: CellwallError, *, has_head: bool) -> None:
        """Have it end everything, cleanly if it answers; its tickets end with `error`.

        `has_head`: whether Ray can end the process afterwards; else it ends itself.
        """
        if self.is_final:
            return
        self._end("lost", error)
        for ticket in (*self.courier.hold(), *self.courier.surrender()):
            ticket.fail(error)
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._link.close(encoded({"exit": not has_head}))
        except (NoAnswer, TimeoutError):
            pass
        if has_head:
            await self._link.drop()

    def _end(self, state: Literal["lost", "unfit"], error: CellwallError) -> None:
        self.error = error
        self._become(state)

    def _become(self, state: State) -> None:
        self.state = state
        self._tell.on_change()
