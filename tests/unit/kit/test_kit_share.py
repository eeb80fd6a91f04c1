"""Shares of tests: together they are all, and no two have the same."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kit.ci.share import AGAIN, ALWAYS, REST, chosen, is_taken, without_shares
from kit.places import ROOT

NAMES = [f"attack/test_a.py::test[{number}]" for number in range(300)]


def test_every_test_is_in_one_share() -> None:
    shares = [chosen(AGAIN, {AGAIN: f"{turn}/3"}) for turn in range(3)]
    assert all(sum(takes(name) for takes in shares) == 1 for name in NAMES)
    assert all(60 < sum(map(takes, NAMES)) < 140 for takes in shares)


def test_without_a_word_all_are_taken() -> None:
    assert all(map(chosen(AGAIN, {}), NAMES))
    assert all(
        is_taken(name, is_again=again, environment={}) for name in NAMES for again in (False, True)
    )


def test_the_rest_is_taken_by_the_file() -> None:
    for turn in range(2):
        taken = {is_taken(name, is_again=False, environment={REST: f"{turn}/2"}) for name in NAMES}
        assert len(taken) == 1
    files = [f"tests/server/test_{number}.py::test" for number in range(300)]
    halves = [
        [is_taken(name, is_again=False, environment={REST: f"{turn}/2"}) for name in files]
        for turn in range(2)
    ]
    assert all(one != other for one, other in zip(*halves, strict=True))
    assert all(110 < sum(half) < 190 for half in halves)


@pytest.mark.parametrize("beginning", ALWAYS)
def test_some_files_are_in_every_run(beginning: str) -> None:
    assert list(ROOT.glob(f"{beginning}*"))
    name = f"{beginning}test_x.py::test"
    for turn in range(2):
        environment = {REST: f"{turn}/2", AGAIN: "0/300"}
        assert is_taken(name, is_again=False, environment=environment)
        assert not all(is_taken(each, is_again=True, environment=environment) for each in NAMES)


@pytest.mark.parametrize("said", ["", "3", "3/3", "1/0", "x/3", "-1/3"])
def test_what_is_no_share_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match="no turn out of shares"):
        chosen(AGAIN, {AGAIN: said})


def test_a_run_within_a_run_takes_all_it_is_asked_for() -> None:
    assert without_shares({"HOME": "/root", REST: "1/3", AGAIN: "1/5"}) == {"HOME": "/root"}


def _status(*words: str, **shares: str) -> int:
    """Return the exit status of a pytest that runs nothing of the fleet's one file."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests/fleet", *words]
    environment = {**without_shares(os.environ), **shares}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    return done.returncode


def test_a_stage_without_a_test_of_this_share_has_passed() -> None:
    """It failed each run of CI whose commit gave another share to that stage's only file."""
    assert [_status(**{REST: f"{turn}/3"}) for turn in range(3)] == [0, 0, 0]
    assert _status("-k", "no_such_test") == pytest.ExitCode.NO_TESTS_COLLECTED
