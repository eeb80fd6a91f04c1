"""Closed, full, and left alone: whatever our own streams are, the command line says what is wrong.

Redirections are a shell's, as callers write them.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from conftest import Require
from kit.command_line import LEVEL, works

CELLWALL = [sys.executable, "-m", "cellwall.apps.cli.main"]
RUN = [*CELLWALL, "run", "--isolation", LEVEL]
PRINTS = [*RUN, "-c", "print(1)"]
Done = subprocess.CompletedProcess[str]


@pytest.fixture(autouse=True)
def _sandboxes(require: Require) -> None:
    require("sandboxes", not works(), works())


def redirected(words: list[str], how: str) -> Done:
    return subprocess.run(
        ["bash", "-c", f"exec {shlex.join(words)} {how}"], input="", capture_output=True,
        check=False, encoding="utf-8", timeout=50,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "how", "said"),
    [
        (PRINTS, ">&-", "stdout: write: Bad file descriptor"),
        (PRINTS, ">/dev/full", "stdout: write: No space left on device"),
        ([*PRINTS, "--json"], ">/dev/full", "stdout: write: No space left on device"),
        ([*CELLWALL, "languages"], ">/dev/full", "stdout: write: No space left on device"),
        ([*RUN, "-"], "<&-", "stdin: read: Bad file descriptor"),
        ([*PRINTS, "--stdin", "-"], "<&-", "stdin: read: Bad file descriptor"),
        ([*CELLWALL, "shell"], "<&-", "stdin: read: Bad file descriptor"),
        ([*CELLWALL, "shell"], "<<< 1 >/dev/full", "stdout: write: No space left on device"),
        ([*CELLWALL, "mcp"], "<&-", "stdin: it is closed"),
        ([*CELLWALL, "mcp"], ">&-", "stdout: it is closed"),
    ],
)
def test_stream_that_cannot_be_used_is_named(words: list[str], how: str, said: str) -> None:
    done = redirected(words, how)
    assert done.returncode == 125
    assert [line[: len(f"cellwall: {said}")] for line in done.stderr.splitlines()] == [
        f"cellwall: {said}"
    ]


def test_stream_that_is_not_used_may_be_closed() -> None:
    assert redirected(PRINTS, "<&-").stdout == "1\n"
    silent = redirected([*RUN, "-c", "raise SystemExit(3)"], "<&- >&- 2>&-")
    assert silent.returncode == 3


@pytest.mark.parametrize(
    ("words", "how", "status"),
    [
        (PRINTS, "2>&-", 0),
        ([*RUN, "-c", "import sys; sys.stderr.write('x'); sys.exit(3)"], "2>&-", 3),
        ([*RUN, "-c", "import sys; sys.stderr.write('x')"], "2>/dev/full", 125),
        ([*RUN], "2>&-", 125),
        ([*RUN], "2>/dev/full", 125),
    ],
)
def test_status_is_right_where_nothing_can_be_said(words: list[str], how: str, status: int) -> None:
    assert redirected(words, how).returncode == status


def test_json_for_nobody_ends_as_any_filter_does() -> None:
    words = shlex.join([*PRINTS, "--json"])
    script = f"exec 3> >(exec true); wait $!; exec {words} >&3"
    gone = subprocess.run(["bash", "-c", script], capture_output=True, check=False, timeout=50)
    assert (gone.returncode, gone.stderr) == (141, b"")


def test_program_that_is_no_utf_8_is_refused_and_json_stays_json() -> None:
    for options in ([], ["--json"]):
        done = subprocess.run(
            [*RUN, *options, "-"], input=b"print('\xe9')", capture_output=True, check=False,
            timeout=50,
        )  # fmt: skip
        assert done.returncode == 125
        assert b"standard input: not UTF-8 text at byte 7" in done.stderr
        assert done.stdout.count(b"\n") == len(options)


def test_argument_too_deep_for_json_is_refused() -> None:
    done = subprocess.run(
        [*PRINTS, "--arg", f"n={'[' * 100_000}"], capture_output=True, check=False, timeout=50
    )
    assert done.returncode == 125
    assert done.stderr.startswith(b"cellwall: run: --arg n: '[[[[")
    assert b"is not JSON" in done.stderr
