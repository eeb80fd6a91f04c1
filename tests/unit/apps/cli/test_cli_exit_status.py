"""The status of `cellwall run` says how the program ended."""

from __future__ import annotations

import pytest

from cellwall.apps.cli.console.exit_status import exit_status, explanation
from cellwall.model.outcome import LOST, Isolation, IsolationLevel, Outcome, Verdict

ISOLATION = Isolation("jail", IsolationLevel.NAMESPACE, "")


def ended(
    verdict: str, code: int | None = None, signal: int | None = None, notes: tuple[str, ...] = ()
) -> Outcome:
    return Outcome(Verdict(verdict), ISOLATION, exit_code=code, signal=signal, notes=notes)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (ended("ok", 0), 0),
        (ended("ok"), 0),
        (ended("ok", 0, notes=("a note",)), 0),
        (ended("ok", 0, notes=(f"{LOST}out/a: why",)), 125),
        (ended("nonzero_exit", 3, notes=(f"{LOST}out/a: why",)), 3),
        (ended("nonzero_exit", 3), 3),
        (ended("nonzero_exit", 137), 137),
        (ended("nonzero_exit", 124), 124),
        (ended("exception", 1), 1),
        (ended("exception"), 1),
        (ended("signalled", None, 11), 139),
        (ended("signalled", None, 9), 137),
        (ended("wall_time", None, 9), 124),
        (ended("memory", None, 9), 137),
        (ended("sandbox_error"), 125),
        (ended("cancelled", None, 9), 130),
        (ended("interrupted", 1), 130),
        (ended("cpu_time", None, 9), 1),
        (ended("processes", 5), 1),
        (ended("disk", 1), 1),
        (ended("output", 0), 1),
        (ended("syscall", None, 31), 1),
    ],
)
def test_status_of_each_end(outcome: Outcome, status: int) -> None:
    assert exit_status(outcome) == status


def test_every_verdict_has_a_status_of_one_byte() -> None:
    assert all(0 <= exit_status(ended(verdict.value)) <= 255 for verdict in Verdict)


@pytest.mark.parametrize("verdict", ["ok", "exception", "nonzero_exit", "signalled"])
def test_an_end_of_its_own_needs_no_word_of_ours(verdict: str) -> None:
    assert explanation(ended(verdict, 0)) is None


def test_files_that_did_not_come_are_named() -> None:
    line = explanation(ended("ok", 0, notes=(f"{LOST}out/a: why", "another", f"{LOST}out/b: why")))
    assert line == f"{LOST}out/a: why; {LOST}out/b: why"


def test_a_limit_is_explained_in_one_line() -> None:
    line = explanation(ended("disk", 1, notes=("the work area\nis full", "raise limits.disk_mb")))
    assert line == "disk: the work area is full; raise limits.disk_mb"
    assert explanation(ended("syscall")) == "syscall"
