"""What a pool remembers of what it had nothing parked for."""

from __future__ import annotations

import time

import pytest

from cellwall.engine.scheduling.recurring import Recurring


class _Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    found = _Clock()
    monkeypatch.setattr(time, "monotonic", found.monotonic)
    return found


def test_a_quarter_of_the_latest_have_to_be_the_same(clock: _Clock) -> None:
    asked = Recurring(60)
    assert [asked.is_frequent("a") for _ in range(5)] == [False] * 3 + [True] * 2
    assert not any(asked.is_frequent(number) for number in range(12))
    assert asked.is_frequent("a")  # three of the latest sixteen, and this one
    assert not any(asked.is_frequent(number) for number in range(16))
    assert not asked.is_frequent("a")


def test_one_of_many_is_never_frequent(clock: _Clock) -> None:
    asked = Recurring(60)
    assert not any(asked.is_frequent(number % 6) for number in range(300))


def test_what_is_too_long_ago_does_not_count(clock: _Clock) -> None:
    asked = Recurring(60)
    assert not any(asked.is_frequent("a") for _ in range(3))
    clock.now_s += 61
    assert not any(asked.is_frequent("a") for _ in range(3))
    clock.now_s += 60
    assert asked.is_frequent("a")
