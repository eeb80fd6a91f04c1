"""The examples of docs/doors.md, run as a reader runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.server.doors import NAMES, opened, slow_start
from kit.servers import ALICE, Server

pytestmark = slow_start
FOLDER = Path(__file__).parents[3] / "examples" / "doors"
PRINTED = {
    "ragflow": "success {'longest': 'sandbox'}",
    "dify": "success 42",
    "fusion": "Success 1.0",
    "piston": "python 0 hello chat",
    "judge0": "Accepted cell",
}


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    with opened(*NAMES) as made:
        yield made


def test_each_door_has_an_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} >= set(NAMES) == set(PRINTED)


@pytest.mark.parametrize("name", NAMES)
def test_example_prints_what_its_client_would_see(door: Server, name: str) -> None:
    env = {**os.environ, "CELLWALL_URL": door.address, "CELLWALL_API_KEY": ALICE}
    argv = [sys.executable, str(FOLDER / f"{name}.py")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == (PRINTED[name], 0), done.stderr
