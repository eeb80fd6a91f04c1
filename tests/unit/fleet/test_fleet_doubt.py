"""Doubt: letters, replies and pings that get lost between a driver and a node.

Both ends are the real ones; between them is a wire that loses what a test says. The work itself is
a stand-in, which only counts: what is tested is how often something begins, and what is told of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from cellwall.fleet.driver.dispatcher import Dispatcher
from cellwall.fleet.driver.link import NoAnswer, NodeGone
from cellwall.fleet.driver.member import MARGIN_S, Callbacks, Member
from cellwall.fleet.driver.ticket import OnLost, Ticket
from cellwall.fleet.node.desk import Desk
from cellwall.fleet.node.lease import Lease
from cellwall.fleet.wire.items import Json, encoded, item
from cellwall.fleet.wire.letters import letter_of
from cellwall.model.errors import CapacityError, NodeLost, NodeUnreachable
from cellwall.surface.shared.tasks import Tasks
from kit import loop_clock
from kit.loop_clock import clock

FENCE_S = 10.0


class Node:
    """A node, and the wire to it."""

    def __init__(self, at_once: int = 2) -> None:
        self.lease = Lease(FENCE_S, clock().time)
        self.at_once = at_once
        self.desk = Desk(self.work, at_once, lambda: self.lease.left_s <= 0)
        self.times: Counter[str] = Counter()
        self.go = asyncio.Event()
        self.loses_letters = self.loses_replies = self.is_silent = self.is_mute = False
        self.is_gone = self.refuses = False
        self.late: list[bytes] = []
        self.ledger: set[str] | None = None

    async def work(self, item: Json) -> bytes:
        self.times[item["id"]] += 1
        if self.refuses:
            failure = {"code": "capacity", "message": "full", "remedy": None}
            return encoded({"id": item["id"], "failure": failure, "refused": True})
        await self.go.wait()
        return encoded({"id": item["id"], "value": item["body"]})

    async def open(self, message: bytes) -> bytes:
        return encoded({"cpus": 1, "at_once": self.at_once, "ledger": "l"})

    async def ping(self, message: bytes) -> bytes:
        if self.is_silent or self.is_gone:
            await asyncio.Event().wait()
        told = letter_of(message)
        self.lease.answer(told["number"], told["heard"])
        if self.is_mute:
            await asyncio.Event().wait()
        return encoded({"running": self.desk.running})

    async def exchange(self, message: bytes) -> bytes:
        if self.is_gone:
            raise NodeGone("it is gone")
        if self.loses_letters:
            self.late.append(message)
            raise NoAnswer("lost on the way there")
        reply = await self.desk.exchange(letter_of(message))
        if self.is_gone:
            raise NodeGone("it is gone")
        if self.loses_replies:
            raise NoAnswer("lost on the way back")
        return reply

    async def close(self, message: bytes) -> bytes:
        return b"{}"

    async def begun(self, ledger: str) -> set[str] | None:
        return self.ledger

    async def drop(self) -> None:
        pass


class Place:
    """A driver with some nodes."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.dispatcher = Dispatcher(lambda: None)

    async def add(self, name: str, node: Node) -> Member:
        tell = Callbacks(self.dispatcher.changed, self.dispatcher.again)
        member = Member(name, "there", node, self.tasks, tell, clock().time)
        self.dispatcher.members[name] = member
        await member.open({"fence_s": FENCE_S})
        return member

    def submit(self, name: str, on_lost: OnLost = "report") -> Ticket:
        ticket = Ticket(name, item(name, "program", {"n": name}), may_move=True, on_lost=on_lost)
        self.dispatcher.submit(ticket)
        return ticket


def state_of(member: Member) -> str:
    return member.state


def told(ticket: Ticket) -> str:
    """Which node did it, or the kind of its error; "" while it has no result."""
    if not ticket.done.done():
        return ""
    error = ticket.done.exception()
    return ticket.done.result()[0] if error is None else type(error).__name__


def test_a_reply_that_is_lost_loses_no_result() -> None:
    async def body() -> None:
        place, node = Place(), Node()
        await place.add("a", node)
        node.loses_replies = True
        ticket = place.submit("t")
        await clock().advance(0.1)
        node.go.set()
        await clock().advance(0.1)
        assert told(ticket) == ""
        node.loses_replies = False
        await clock().advance(3)
        assert told(ticket) == "a"
        assert node.times == {"t": 1}
        await place.tasks.cancel()

    loop_clock.run(body())


def test_a_letter_that_never_arrived_is_sent_anew_and_begins_nothing_when_it_comes() -> None:
    async def body() -> None:
        place, node = Place(), Node()
        await place.add("a", node)
        node.loses_letters = True
        ticket = place.submit("t")
        await clock().advance(0.1)
        node.loses_letters = False
        node.go.set()
        await clock().advance(3)
        assert told(ticket) == "a"
        # Now what was on the way all the time arrives.
        for letter in node.late:
            reply = json.loads(await node.desk.exchange(letter_of(letter)))
            assert reply["refused"] == ["t"]
        assert node.times == {ticket.id: 1}
        assert ticket.id != "t"
        await place.tasks.cancel()

    loop_clock.run(body())


def test_a_silent_node_gets_nothing_new_and_is_lost_after_its_lease() -> None:
    async def body() -> None:
        place, node, other = Place(), Node(), Node()
        member = await place.add("a", node)
        ticket = place.submit("t")
        await clock().advance(0.1)
        await place.add("b", other)
        other.go.set()
        node.is_silent = node.loses_letters = True
        await clock().advance(3.5)
        assert state_of(member) == "unreachable"
        later = place.submit("u")
        await clock().advance(1)
        assert told(later) == "b"
        await clock().advance(FENCE_S + MARGIN_S - 6)
        assert told(ticket) == ""
        assert node.lease.left_s <= 0, "the node ends before its loss is told"
        await clock().advance(4)
        assert told(ticket) == "NodeLost"
        assert state_of(member) == "lost"
        await place.tasks.cancel()

    loop_clock.run(body())


def test_a_node_that_hears_and_is_not_heard_ends_in_time() -> None:
    async def body() -> None:
        place, node = Place(), Node()
        member = await place.add("a", node)
        await clock().advance(5)
        node.is_mute = True
        await clock().advance(FENCE_S)
        assert node.lease.left_s <= 0
        assert state_of(member) == "unreachable"
        place.submit("t")
        await clock().advance(0)
        assert node.times == {}
        await place.tasks.cancel()

    loop_clock.run(body())


def test_a_node_that_is_back_goes_on() -> None:
    async def body() -> None:
        place, node = Place(), Node()
        member = await place.add("a", node)
        ticket = place.submit("t")
        await clock().advance(0.1)
        node.is_silent = True
        await clock().advance(5)
        assert state_of(member) == "unreachable"
        node.is_silent = False
        await clock().advance(2)
        assert state_of(member) == "ready"
        node.go.set()
        await clock().advance(1)
        assert told(ticket) == "a"
        assert node.times == {"t": 1}
        await place.tasks.cancel()

    loop_clock.run(body())


@pytest.mark.parametrize(
    ("on_lost", "ledger", "expected"),
    [
        ("report", {"t"}, "NodeLost"),
        ("report", {"another"}, "b"),
        ("report", None, "NodeLost"),
        ("retry", {"t"}, "b"),
    ],
)
def test_of_an_ended_node_only_what_had_begun_is_lost(
    on_lost: OnLost, ledger: set[str] | None, expected: str
) -> None:
    async def body() -> None:
        place, node, other = Place(), Node(), Node()
        await place.add("a", node)
        ticket = place.submit("t", on_lost)
        await clock().advance(0.1)
        await place.add("b", other)
        other.go.set()
        node.is_gone, node.ledger = True, ledger
        await clock().advance(20)
        assert told(ticket) == expected
        await place.tasks.cancel()

    loop_clock.run(body())


def test_what_is_refused_goes_elsewhere_and_at_last_to_its_caller() -> None:
    async def body() -> None:
        place, full, other = Place(), Node(), Node()
        full.refuses = True
        await place.add("a", full)
        ticket = place.submit("t")
        await clock().advance(1)
        assert ticket.done.result()[1]["failure"]["code"] == "capacity"
        await place.add("b", other)
        other.go.set()
        moved = [place.submit(f"u{number}") for number in range(8)]
        await clock().advance(1)
        assert {told(each) for each in moved} <= {"a", "b"}
        assert "b" in {told(each) for each in moved}
        await place.tasks.cancel()

    loop_clock.run(body())


def test_a_call_in_a_sandbox_is_refused_while_its_node_is_away() -> None:
    async def body() -> None:
        place, node = Place(), Node()
        member = await place.add("a", node)
        node.is_silent = True
        await clock().advance(4)
        ticket = Ticket("s", item("s", "run", {}), may_move=False)
        member.give(ticket)
        assert isinstance(ticket.done.exception(), NodeUnreachable)
        await clock().advance(20)
        again = Ticket("s2", item("s2", "run", {}), may_move=False)
        member.give(again)
        assert isinstance(again.done.exception(), NodeLost)
        await place.tasks.cancel()

    loop_clock.run(body())


def test_without_a_node_nothing_waits_for_ever() -> None:
    async def body() -> None:
        place, node = Place(), Node()
        await place.add("a", node)
        node.is_silent = node.loses_letters = True
        await clock().advance(20)
        ticket = place.submit("t")
        assert isinstance(ticket.done.exception(), CapacityError)
        await place.tasks.cancel()

    loop_clock.run(body())
