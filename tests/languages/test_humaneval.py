"""The row of HumanEval: solutions pass their tests through a batch, and a wrong one is noticed."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from cellwall.apps.timings import TimingError
from cellwall_bench.programs import HUMANEVAL, humaneval

pytestmark = pytest.mark.timeout(120)


def _file(place: Path, *bodies: str) -> str:
    problems = [
        {
            "task_id": f"Mine/{number}",
            "prompt": "def twice(n):\n",
            "canonical_solution": f"    return {body}\n",
            "test": "def check(candidate):\n    assert candidate(21) == 42\n",
            "entry_point": "twice",
        }
        for number, body in enumerate(bodies)
    ]
    path = place / "problems.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f"{json.dumps(each)}\n" for each in problems).encode()))
    return str(path)


def test_solutions_run_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HUMANEVAL, _file(tmp_path, "2 * n", "n + n", "n << 1"))
    figure = asyncio.run(humaneval("humaneval"))
    assert figure.value
    assert figure.detail.startswith("3 of 3 ended as they should")


def test_wrong_solution_voids_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HUMANEVAL, _file(tmp_path, "2 * n", "n + 2"))
    with pytest.raises(TimingError, match="1 wrong; python: exception"):
        asyncio.run(humaneval("humaneval"))


def test_without_the_file_the_row_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HUMANEVAL, raising=False)
    figure = asyncio.run(humaneval("humaneval"))
    assert (figure.value, HUMANEVAL in figure.detail) == (None, True)
