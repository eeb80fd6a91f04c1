"""The demo shows only what it checked, and its bait would be taken without a wall."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.apps.cli.demo_scenes import HOSTILE, Bait, Demo, DemoFailure, bait, find_examples
from cellwall.apps.engines import open_engine
from cellwall.model.errors import UsageError
from conftest import Require
from kit.command_line import start, works
from kit.places import ROOT

EXAMPLES = ROOT / "examples"


def naked(program: str, trap: Bait) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "hostile" / program)],
        env={**os.environ, **trap.environment()}, capture_output=True, check=False,
        encoding="utf-8", timeout=30,
    )  # fmt: skip


def test_without_a_wall_the_bait_is_taken() -> None:
    with bait() as trap:
        done = naked("peek_and_phone.py", trap)
        assert f"read a file of the host: GOT {trap.secret!r}" in done.stdout
        assert "connect to a port of the host: GOT" in done.stdout
        assert "signal a process of the host: GOT" in done.stdout
        assert trap.was_reached()
        assert done.returncode >= 3


def test_an_untouched_bait_says_so() -> None:
    with bait() as trap:
        assert not trap.was_reached()


def test_examples_that_are_not_there_are_a_usage_error(tmp_path: Path) -> None:
    assert find_examples(EXAMPLES) == EXAMPLES
    assert find_examples(None) == EXAMPLES, "those of this clone"
    with pytest.raises(UsageError, match=r"no orders\.csv"):
        find_examples(tmp_path)


def test_every_hostile_example_is_part_of_the_demo() -> None:
    files = {path.name for path in (EXAMPLES / "hostile").iterdir() if path.suffix == ".py"}
    assert files == {program.file for program in HOSTILE}


@pytest.mark.parametrize("program", HOSTILE, ids=lambda program: program.file)
def test_a_hostile_program_is_contained(program: object, require: Require, tmp_path: Path) -> None:
    require("sandboxes", not works(), works())
    hostile = next(p for p in HOSTILE if p is program)

    async def attack() -> str:
        async with open_engine() as engine:
            with bait() as trap:
                execution = await Demo(EXAMPLES, tmp_path, "namespace").attack(
                    engine, hostile, trap
                )
        return execution.verdict.value

    assert asyncio.run(attack()) in {"processes", "memory", "wall_time", "ok", "output"}


def test_a_program_that_is_not_contained_fails_the_demo(require: Require, tmp_path: Path) -> None:
    require("sandboxes", not works(), works())
    (tmp_path / "hostile").mkdir()
    harmless = HOSTILE[0]
    (tmp_path / "hostile" / harmless.file).write_text("print('I did not bomb')")

    async def attack() -> None:
        async with open_engine() as engine:
            with bait() as trap:
                await Demo(tmp_path, tmp_path, "namespace").attack(engine, harmless, trap)

    with pytest.raises(DemoFailure, match="fork bomb was not contained"):
        asyncio.run(attack())


@pytest.mark.slow
def test_the_whole_demo_ends_well(require: Require, tmp_path: Path) -> None:
    require("sandboxes", not works(), works())
    done = start("demo", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "revenue.png").read_bytes().startswith(b"\x89PNG")
