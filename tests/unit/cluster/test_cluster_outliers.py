"""Nodes that answer much later than the others: put out, tried, and let in again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from cellwall.cluster.gateway.book import Book, Node, Told
from cellwall.cluster.gateway.wire.links import Address, Links
from cellwall.cluster.gateway.work.outliers import TRIAL_EVERY, judge

NAMES = ("aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff")


def _book(count: int) -> Book:
    made = Book(13.0, [Node(Links(Address("127.0.0.1", port), None)) for port in range(count)])
    for node, name in zip(made.nodes, NAMES, strict=False):
        made.answered(node, Told(name, "g", False, "1", 5.0), 0.0)
    return made


def _take(node: Node, took_s: Iterable[float], now_s: float = 1.0) -> None:
    for each in took_s:
        node.pace.took(each, now_s)


def _all(book: Book, *took_s: float) -> None:
    for node, each in zip(book.nodes, took_s, strict=True):
        _take(node, [each * (1 + 0.02 * number) for number in range(10)])


def _is_out(node: Node) -> bool:
    return node.pace.why != ""


@pytest.fixture
def three() -> Book:
    made = _book(3)
    _all(made, 0.01, 0.01, 0.1)
    judge(made.nodes, 1.0)
    return made


def test_slow_node_gets_one_program_in_many_and_says_why(three: Book) -> None:
    slow = three.nodes[2]
    assert [each["state"] for each in three.shown()] == ["ready", "ready", "slow"]
    assert "of the others" in three.shown()[2]["why"]
    count = Counter(three.choose() is slow for _ in range(50 * TRIAL_EVERY))
    assert count[True] == 50
    assert count[True] / count.total() < 0.02
    slow.programs = slow.in_flight = 1  # one trial at a time
    assert not any(three.choose() is slow for _ in range(3 * TRIAL_EVERY))


def test_streams_sessions_and_long_programs_keep_no_trial_away(three: Book) -> None:
    slow = three.nodes[2]
    slow.in_flight = 5
    assert any(three.choose() is slow for _ in range(TRIAL_EVERY))
    slow.programs = 2
    for now_s, has_trials in ((2.0, False), (6.9, False), (7.0, True)):
        judge(three.nodes, now_s)
        assert any(three.choose() is slow for _ in range(TRIAL_EVERY)) == has_trials
    slow.programs = 3  # a trial beside them
    judge(three.nodes, 7.5)
    assert not any(three.choose() is slow for _ in range(2 * TRIAL_EVERY))
    slow.programs = 0  # all have ended
    judge(three.nodes, 8.0)
    slow.programs = 1
    assert not any(three.choose() is slow for _ in range(2 * TRIAL_EVERY))


def test_node_that_is_out_is_asked_when_no_other_is_there(three: Book) -> None:
    slow = three.nodes[2]
    assert three.choose(set(three.nodes[:2])) is slow


def test_trials_that_go_well_let_it_in_and_each_relapse_asks_for_more_of_them(three: Book) -> None:
    slow = three.nodes[2]
    _take(slow, [0.01, 0.01, 0.1, 0.01, 0.01])
    assert _is_out(slow)
    _take(slow, [0.01])
    assert not _is_out(slow)
    judge(three.nodes, 1.0)
    assert not _is_out(slow)  # what was before is forgotten
    _take(slow, [0.1] * 10)
    judge(three.nodes, 1.0)
    _take(slow, [0.01] * 5)
    assert _is_out(slow)
    _take(slow, [0.01])
    assert not _is_out(slow)


@pytest.mark.parametrize(
    ("count", "slow", "out"),
    [(1, 1, 0), (2, 1, 0), (3, 1, 1), (5, 2, 1), (6, 2, 2), (4, 2, 1), (6, 3, 2)],
)
def test_at_most_a_third_is_out(count: int, slow: int, out: int) -> None:
    book = _book(count)
    _all(book, *[0.01] * (count - slow), *[0.1] * slow)
    for _ in range(2):
        judge(book.nodes, 1.0)
        assert sum(_is_out(each) for each in book.nodes) == out


def test_nodes_are_let_in_when_the_others_have_gone(three: Book) -> None:
    for node in three.nodes[:2]:
        three.missed(node, "away", 2.0)
        three.missed(node, "away", 3.0)
    judge(three.nodes, 3.0)
    assert not three.nodes[2].pace.why


def test_few_answers_old_ones_and_long_programs_prove_nothing() -> None:
    book = _book(3)
    _all(book, 0.01, 0.01, 0.01)
    _take(book.nodes[2], [5.0])
    judge(book.nodes, 1.0)  # one long program
    book_of_old = _book(3)
    _all(book_of_old, 0.01, 0.01, 0.1)
    judge(book_of_old.nodes, 100.0)
    few = _book(3)
    _all(few, 0.01, 0.01, 0.01)
    few.answered(few.nodes[2], Told("cccc", "another", False, "1", 5.0), 1.0)
    _take(few.nodes[2], [0.1] * 7)
    judge(few.nodes, 1.0)
    for each in (book, book_of_old, few):
        assert not any(node.pace.why for node in each.nodes)
    _take(few.nodes[2], [0.1])  # the eighth
    judge(few.nodes, 1.0)
    assert few.nodes[2].pace.why


def test_new_server_of_a_node_begins_anew(three: Book) -> None:
    three.answered(three.nodes[2], Told("cccc", "another", False, "1", 5.0), 2.0)
    assert not three.nodes[2].pace.why


def test_node_that_missed_a_probe_gets_nothing_unless_many_did() -> None:
    book = _book(3)
    book.missed(book.nodes[0], "late", 1.0)
    assert not any(book.choose() is book.nodes[0] for _ in range(50))
    book.missed(book.nodes[1], "late", 1.0)
    assert {book.choose().name for _ in range(200)} == {"aaaa", "bbbb", "cccc"}
