"""How much of the loop's time a sandbox's words may take: the account, on a made-up clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellwall.runtimes.channel import loop_share
from cellwall.runtimes.channel.loop_share import BURST_S, SHARE, TURN_S, Hearing

MANY = 1_000_000


@pytest.fixture(autouse=True)
def nobody_loud_before_or_after() -> Iterator[None]:
    assert Hearing._loud == 0
    yield
    assert Hearing._loud == 0


def _talk(accounts: list[Hearing], stretch_s: float) -> float:
    """Have all say as much as they may; return what share of the time they were heard."""
    now, heard_s = 100.0, 0.0
    may_speak = [now] * len(accounts)
    while now < 100.0 + stretch_s:
        number = min(range(len(accounts)), key=may_speak.__getitem__)
        now = max(now, may_speak[number])
        pause_s = accounts[number].spend(now, TURN_S, MANY, 0)
        now, heard_s = now + TURN_S, heard_s + TURN_S
        may_speak[number] = now + pause_s
    return heard_s / stretch_s


@pytest.mark.parametrize("count", [1, 2, 6, 40, 100])
def test_floods_have_one_share_among_all_of_them(count: int) -> None:
    accounts = [Hearing() for _ in range(count)]
    share = _talk(accounts, 20.0)
    for account in accounts:
        account.close()
    bursts = count * (BURST_S + TURN_S) / 20.0
    assert share <= SHARE * 1.1 + bursts


def test_one_flood_has_about_its_share() -> None:
    account = Hearing()
    assert 0.8 * SHARE < _talk([account], 20.0) < 1.2 * SHARE
    account.close()


def test_ordinary_words_cost_nobody_a_pause() -> None:
    account = Hearing()
    pauses = [account.spend(n * 0.1, 0.0001, 10, 4096) for n in range(1000)]
    assert not any(pauses)


def test_one_that_says_more_than_others_waits_a_little() -> None:
    """A thousand lines in a second, with nobody else who says much."""
    account = Hearing()
    pauses = [account.spend(n * 0.001, 0.00002, 1, 60) for n in range(10_000)]
    account.close()
    assert sum(pauses) < 0.5


def test_answers_that_were_asked_for_cost_nobody_a_pause() -> None:
    """A cell after the other, ten frames each and nothing between them."""
    account, now = Hearing(), 0.0
    for _ in range(1000):
        account.grant()
        assert not account.spend(now, 0.001, 10, 4096)
        now += 0.001


def test_slow_callback_is_not_what_the_inside_said() -> None:
    """Half a second of somebody's own for each of ten lines of output."""
    account = Hearing()
    assert not any(account.spend(n * 0.5, 0.5, 1, 60) for n in range(10))


def test_json_is_taken_down_for_as_long_as_it_takes() -> None:
    """One frame, and no matter how few its bytes are."""
    account = Hearing()
    assert account.spend(0.0, 0.5, 1, 60, apart_s=0.4) >= (0.4 - BURST_S) / SHARE
    account.close()


def test_processor_time_is_the_most_that_json_counts() -> None:
    """Another thread's may be in what was added up meanwhile."""
    account = Hearing()
    assert not account.spend(0.0, 0.0001, 1, 60, apart_s=10.0)


def test_flood_that_ends_is_forgiven() -> None:
    account = Hearing()
    assert account.spend(0.0, 0.05, MANY, 0) > 0
    assert Hearing._loud == 1
    assert not account.spend(10.0, 0.0001, 1, 0)
    assert Hearing._loud == 0


def test_last_words_after_the_end_count_for_nobody() -> None:
    account = Hearing()
    account.close()
    assert not account.spend(0.0, 0.5, MANY, 0)
    assert Hearing._loud == 0


def test_lines_are_taken_down_as_frames_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_share, "_LINE_S", 0.00005)
    account = Hearing()
    assert not account.spend_lines(1.0, 100)
    assert account.spend_lines(1.001, 1000) > 0
    account.close()
