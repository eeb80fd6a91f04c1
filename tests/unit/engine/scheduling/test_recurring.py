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


def test_second_time_is_again_until_it_is_too_long_ago(clock: _Clock) -> None:
    asked = Recurring(60)
    assert not asked.is_again("a")
    assert asked.is_again("a")
    assert not asked.is_again("b")
    clock.now_s += 60
    assert asked.is_again("a")
    clock.now_s += 61
    assert not asked.is_again("a")
    assert asked.is_again("a")


def test_only_the_latest_are_remembered(clock: _Clock) -> None:
    asked = Recurring(60)
    for number in range(65):
        assert not asked.is_again(number)
    assert asked.is_again(1)
    assert not asked.is_again(0)  # it took the place of the oldest, which is 2 by now
    assert not asked.is_again(2)
    assert asked.is_again(64)
