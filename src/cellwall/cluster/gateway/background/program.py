"""One program in the background that a gateway has in hand: to a node, and there to its end.

Made by `handing`, anew for each look at its row. `errand` brings it to a node, by the rules of
every program. The invariant: it goes on to another try only after it is certain that the one before
never begins.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from cellwall.cluster.directory.connection import away
from cellwall.cluster.directory.programs import HAND_S
from cellwall.cluster.gateway import errand
from cellwall.cluster.gateway.background.accepting import aid_of
from cellwall.cluster.gateway.background.outcomes import WAITING, failed_by, notice_of, unread
from cellwall.cluster.gateway.callers import Caller, said_of
from cellwall.cluster.gateway.doubt import Doubt
from cellwall.cluster.gateway.wire.asking import answer_on
from cellwall.model.errors import (
    CapacityError,
    CellwallError,
    Interrupted,
    NodeLost,
    NodeUnreachable,
    NotFound,
)
from cellwall.model.ids import new_id
from cellwall.server.auth.keys import SCOPES, Principal
from cellwall.server.core.body_budget import Held
from cellwall.server.core.errors import HttpError
from cellwall.store.records.errors import StoreBusy
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.cluster.directory.programs import Programs, Taken
    from cellwall.cluster.gateway.background.aside import Aside, Room
    from cellwall.cluster.gateway.book import Node
    from cellwall.cluster.gateway.gateway import Gateway
    from cellwall.cluster.gateway.wire.asking import Whole
    from cellwall.cluster.gateway.wire.heads import Headers
    from cellwall.cluster.gateway.work.turns import Turn

_FIRST_WAIT_S, _WAIT_S = 0.25, 1.0
"""Seconds for which a node holds its answer about a program that goes on."""
_AWAY_S = 0.3
_YOUNG_S, _PART, _MOST_PAUSE_S = 5.0, 0.1, 5.0
"""A program that has gone on for longer is asked for after a part of that time."""
_ASK_S = 10.0
_KEPT_BYTES = 1 << 20
"""Longest object of a program that the directory keeps; its node has longer ones."""
_LATE_S = HAND_S / 2
"""A try that is later than this after it was written is not made: another gateway may soon think
that this one is dead."""


class _NotOurs(CellwallError):
    """Another gateway has it in hand, or it was cancelled."""


class _TooLong(CellwallError):
    """Its object is longer than what is read of an answer."""


class Program:
    """See the module."""

    def __init__(
        self,
        gateway: Gateway,
        programs: Programs,
        aside: Aside,
        taken: Taken,
        tiers: Mapping[str, str],
    ) -> None:
        self.taken = taken
        self._gateway = gateway
        self._programs = programs
        self._aside = aside
        self._node, self._tries = taken.node, taken.tries
        self._since_s = asyncio.get_running_loop().time() - taken.age_s
        self._asked = dict[str, str](json.loads(taken.said))
        scope = next(each for each in SCOPES if each == self._asked["scope"])
        principal = Principal(taken.tenant, self._asked["key_id"], scope)
        said = said_of(principal, tiers.get(taken.tenant, ""))
        said.append((b"x-request-id", self._asked["request_id"].encode()))
        self._caller = Caller(principal, said, frozenset())
        self._room: Room | None = None
        """While it may be at a node without having begun."""

    async def go(self) -> bool:
        """Bring it to its end; False: look again how far it is. Raises what is tried again."""
        if self.taken.state == "begun":
            return await self._followed(None)
        async with self._gateway.place(self.taken.tenant):
            return await self._handed_over()

    # -- to a node -------------------------------------------------------------------------

    async def _handed_over(self) -> bool:
        turn = self._gateway.turns.ask(self.taken.tenant)
        try:
            await turn.come()
            self._room = await self._aside.enter(self.taken.tenant)
            return await self._in_turn(turn)
        finally:
            self._leave()
            turn.leave()

    def _leave(self) -> None:
        """Give back the room of what has not begun."""
        if self._room is not None:
            self._room.leave()

    async def _in_turn(self, turn: Turn) -> bool:
        refusal: CellwallError | None = None
        try:
            await self._at_a_node(turn)
        except _NotOurs:
            return False
        except StoreBusy:  # the directory is away: what is written of a try is not known
            raise
        except CapacityError:
            await self._wait_again()
            return False
        except (NodeLost, NodeUnreachable, Interrupted) as error:
            refusal = error  # of its node, or of another that has what it names
        except CellwallError as error:
            return await self._end(self._failed(error))
        if not self._node:
            return await self._end_or_wait(refusal)
        return await self._followed(refusal)

    async def _at_a_node(self, turn: Turn) -> None:
        taken = self.taken
        body = await self._programs.body(taken.tenant, taken.id, taken.body_bytes)
        if body is None:
            raise _NotOurs("it has ended")
        held = Held(self._gateway.bodies, self.taken.tenant)
        try:
            held.resize(len(body))
            key = (b"idempotency-key", self._key)
            aid = aid_of(self._gateway, self._caller, self._asked, self._offer, (key,))
            await errand.run(self._gateway.book, self._caller.said, body, turn, aid)
        finally:
            held.release()

    async def _offer(self, node: Node) -> str:
        """Write the try down that is made now; return what the node is offered."""
        loop = asyncio.get_running_loop()
        began_s, name = loop.time(), node.name
        found = await self._programs.begin(self.taken.tenant, self.taken.id, name, self._tries)
        if found is None:
            raise _NotOurs("it is not in this gateway's hand")
        self._node, self._tries, self._since_s = name, found, began_s
        if loop.time() - began_s > _LATE_S:
            raise away("background")
        return self._offered

    async def _wait_again(self) -> None:
        """Have it wait in the directory: no node takes it now, and none has begun it."""
        if self._node:
            await self._programs.give_up(self.taken.tenant, self.taken.id, self._tries)

    async def _end_or_wait(self, error: CellwallError | None) -> bool:
        """End it by what can never be otherwise; else have it tried again."""
        if isinstance(error, NodeLost):  # what it names is lost
            return await self._end(self._failed(error))
        await self._wait_again()
        return False

    @property
    def _offered(self) -> str:
        return f"{self.taken.id}.{self._tries}"

    @property
    def _key(self) -> bytes:
        """The idempotency key by which its node remembers it for a day."""
        return b"background-" + self.taken.id.encode()

    # -- at its node -----------------------------------------------------------------------

    async def _followed(self, refusal: CellwallError | None) -> bool:
        """Ask its node until it has ended, and write that down; False: it is to be tried again.

        `refusal`: why it may not have come to the node.
        """
        book, loop = self._gateway.book, asyncio.get_running_loop()
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                node = book.of(self._node, "execution", self.taken.id)
                answer = await self._ask(node, wait_s)
                if answer.status == 404 and not await self._has_begun(node):
                    return await self._end_or_wait(refusal)
            except (NodeUnreachable, NotFound, OSError):  # it may come back
                await asyncio.sleep(_AWAY_S)
                continue
            except _TooLong:
                return await self._end(None)
            except (NodeLost, HttpError) as error:
                return await self._end(self._failed(error))
            value = _object(answer)
            if value is not None and value["status"] not in WAITING:
                return await self._end(value)
            if value is not None and value["status"] == "running":
                self._leave()
            went_on_s = loop.time() - self._since_s
            wait_s = _WAIT_S
            if went_on_s > _YOUNG_S or answer.status != 200:
                await asyncio.sleep(min(_MOST_PAUSE_S, max(_AWAY_S, _PART * went_on_s)))

    async def _ask(self, node: Node, wait_s: float) -> Whole:
        """Ask a node about it. Raises OSError, _TooLong."""
        target = f"/executions/{self.taken.id}?wait={wait_s:g}".encode()
        size = 0

        def count(more: int) -> None:
            nonlocal size
            size += more
            if size > _KEPT_BYTES:
                raise _TooLong("its object is too long to be kept here")

        link = await node.links.take()
        try:
            async with asyncio.timeout(_ASK_S):
                said: Headers = self._caller.said
                return await answer_on(link, node.links.address, target, said, count=count)
        finally:
            node.links.give_back(link)

    async def _has_begun(self, node: Node) -> bool:
        """Report whether it may begin at its node; else it never will by this try.

        Raises HttpError if the node has had it and keeps it no longer, NodeUnreachable.
        """
        named: Headers = [*self._caller.said, (b"idempotency-key", self._key)]
        age_s = asyncio.get_running_loop().time() - self._since_s
        return await Doubt(self._gateway.book, node).has_begun(self._offered, named, age_s)

    # -- its end ---------------------------------------------------------------------------

    def _failed(self, error: Exception) -> dict[str, Any]:
        return failed_by(self.taken.shown, error, self._asked["request_id"])

    async def _end(self, value: dict[str, Any] | None) -> bool:
        """Write its end down; None: its node alone has the object. Always True."""
        self._leave()
        answer = None if value is None else one_line(value)
        notice = (new_id(), notice_of(unread(self.taken.shown) if value is None else value))
        while True:
            try:
                await self._programs.end(self.taken.tenant, self.taken.id, answer, notice)
                return True
            except StoreBusy:
                await asyncio.sleep(_AWAY_S)


def _object(answer: Whole) -> dict[str, Any] | None:
    """Return the program's object; None: the answer says nothing of it."""
    if answer.status != 200:
        return None
    try:
        found = json.loads(answer.body)
        return dict(found) if "status" in found else None
    except (ValueError, TypeError):
        return None
