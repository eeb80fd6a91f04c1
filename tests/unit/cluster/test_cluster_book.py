"""What a gateway knows of nodes: states, names that are lost for ever, the choice for new work."""

from __future__ import annotations

import pytest

from cellwall.cluster.gateway.book import Book, Node, Size, Told
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.model.errors import CapacityError, NodeLost, NodeUnreachable, NotFound

LOST_AFTER_S = 13.0


def _node(port: int) -> Node:
    return Node(Links(Address("127.0.0.1", port), None))


def _told(name: str, *, is_draining: bool = False, fence_s: float = 10.0) -> Told:
    return Told(name, "g1", is_draining, "1", fence_s)


@pytest.fixture
def book() -> Book:
    made = Book(LOST_AFTER_S, [_node(1), _node(2), _node(3)])
    for node, name in zip(made.nodes, ("aaaa", "bbbb", "cccc"), strict=True):
        made.answered(node, _told(name), 0.0)
    return made


def test_node_is_found_by_its_name(book: Book) -> None:
    assert book.of("bbbb", "sandbox", "x") is book.nodes[1]
    for name in ("", "zzzz"):
        with pytest.raises(NotFound):
            book.of(name, "sandbox", "x")


def test_two_missed_probes_make_a_node_unreachable_and_an_answer_brings_it_back(book: Book) -> None:
    node = book.nodes[0]
    book.missed(node, "away", 1.0)
    assert book.of("aaaa", "sandbox", "x") is node
    book.missed(node, "away", 2.0)
    with pytest.raises(NodeUnreachable, match="may come back"):
        book.of("aaaa", "sandbox", "x")
    assert all(book.choose() is not node for _ in range(50))
    book.answered(node, _told("aaaa"), 3.0)
    assert book.of("aaaa", "sandbox", "x") is node


def test_node_is_lost_once_its_fence_is_certainly_over_and_stays_lost(book: Book) -> None:
    node = book.nodes[0]
    assert not book.missed(node, "away", LOST_AFTER_S)
    assert book.missed(node, "away", LOST_AFTER_S + 0.1)
    with pytest.raises(NodeLost, match="the program was not the reason"):
        book.of("aaaa", "sandbox", "x")
    book.answered(node, _told("aaaa"), 20.0)  # it comes back under the name that is over
    assert (node.state, node.used_up) == ("refused", "aaaa")
    with pytest.raises(NodeLost):
        book.of("aaaa", "sandbox", "x")
    book.answered(node, _told("dddd"), 21.0)
    assert node.used_up == ""
    assert (node.state, book.of("dddd", "sandbox", "x")) == ("ready", node)


def test_node_with_another_name_has_lost_the_former(book: Book) -> None:
    book.answered(book.nodes[0], _told("eeee"), 1.0)
    with pytest.raises(NodeLost):
        book.of("aaaa", "sandbox", "x")
    assert book.of("eeee", "sandbox", "x") is book.nodes[0]


def test_node_cannot_take_the_name_of_another(book: Book) -> None:
    book.answered(book.nodes[1], _told("aaaa"), 1.0)
    assert (book.nodes[1].state, book.nodes[1].name) == ("refused", "")
    assert book.of("aaaa", "sandbox", "x") is book.nodes[0]


def test_node_that_the_directory_does_not_know_yet_gets_nothing_new(book: Book) -> None:
    book.has_directory = True
    book.take_known(frozenset({"aaaa", "cccc"}))
    book.answered(book.nodes[1], _told("bbbb"), 1.0)
    assert all(book.choose() is not book.nodes[1] for _ in range(50))
    assert book.of("bbbb", "sandbox", "x") is book.nodes[1]  # what is there is reached
    assert "does not know it yet" in book.shown()[1]["why"]
    heard: list[bool] = []
    book.on_change = lambda: heard.append(True)
    book.take_known(frozenset({"aaaa", "bbbb", "cccc"}))
    assert heard
    assert any(book.choose() is book.nodes[1] for _ in range(50))
    book.nodes[1].mark(is_listed=False)
    book.take_known(frozenset({"aaaa", "bbbb"}))
    assert all(book.choose() is not book.nodes[1] for _ in range(50))


def test_choice_takes_the_one_with_less_in_flight_and_never_one_that_drains(book: Book) -> None:
    book.nodes[0].in_flight = 9
    book.answered(book.nodes[2], _told("cccc", is_draining=True), 1.0)
    assert all(book.choose() is book.nodes[1] for _ in range(50))
    assert book.choose(frozenset({book.nodes[1]})) is book.nodes[0]
    assert book.of("cccc", "sandbox", "x") is book.nodes[2]  # what it has goes on
    with pytest.raises(CapacityError, match="none of them is ready"):
        book.choose(frozenset(book.nodes))


def test_choice_is_spread_over_idle_nodes(book: Book) -> None:
    chosen = {book.choose().name for _ in range(200)}
    assert chosen == {"aaaa", "bbbb", "cccc"}


def test_node_that_never_answered_is_not_lost() -> None:
    book = Book(LOST_AFTER_S, [_node(1)])
    assert not book.missed(book.nodes[0], "refused", 100.0)
    assert (book.nodes[0].state, book.lost) == ("unknown", {})


def test_node_that_would_outlive_its_loss_is_refused(book: Book) -> None:
    for fence_s in (LOST_AFTER_S, 60.0, float("nan")):
        book.answered(book.nodes[0], _told("aaaa", fence_s=fence_s), 1.0)
        assert book.nodes[0].state == "refused"
        assert "fence_s" in book.nodes[0].why
    book.answered(book.nodes[0], _told("aaaa"), 2.0)
    assert book.nodes[0].state == "ready"


def test_node_that_ended_empty_has_time_to_come_back(book: Book) -> None:
    empty, full = book.nodes[:2]
    book.answered(empty, Told("aaaa", "g1", True, "1", 10.0, Size(left=0)), 0.0)
    book.answered(full, Told("bbbb", "g1", True, "1", 10.0, Size(left=1)), 0.0)
    assert not book.missed(empty, "away", LOST_AFTER_S + 0.1)
    assert book.missed(full, "away", LOST_AFTER_S + 0.1)
    book.missed(empty, "away", 500.0)
    with pytest.raises(NodeUnreachable):
        book.of("aaaa", "sandbox", "x")
    book.answered(empty, _told("aaaa"), 501.0)
    assert book.of("aaaa", "sandbox", "x") is empty
