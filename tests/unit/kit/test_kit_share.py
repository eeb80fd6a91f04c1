"""Shares of repeated attacks: together they are all, and no two have the same."""

from __future__ import annotations

import pytest

from kit.attack.share import VARIABLE, chosen

NAMES = [f"attack/test_a.py::test[{number}]" for number in range(300)]


def test_every_test_is_in_one_share() -> None:
    shares = [chosen({VARIABLE: f"{turn}/3"}) for turn in range(3)]
    assert all(sum(takes(name) for takes in shares) == 1 for name in NAMES)
    assert all(60 < sum(map(takes, NAMES)) < 140 for takes in shares)


def test_without_a_word_all_are_taken() -> None:
    assert all(map(chosen({}), NAMES))


@pytest.mark.parametrize("said", ["", "3", "3/3", "1/0", "x/3", "-1/3"])
def test_what_is_no_share_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match="no turn out of shares"):
        chosen({VARIABLE: said})
