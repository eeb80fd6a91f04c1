"""An engine that is killed while it has snapshots: `python -m kit.copies.killed DIRECTORY N…`.

Not a test. Each N is a random program: it begins, is kept as `pN`, and is asked; its answers are in
`N.json`. `CRASH` in the environment names a function before whose call the engine kills itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cellwall import AsyncSandbox, Engine, EngineSettings
from kit.copies.programs import DATA, PLAIN, program
from kit.places import TESTS

OF_PYTHON = 4
"""One program of so many is of the template `python`."""
LIMITS = {"memory_mb": 1024, "processes": 60, "disk_mb": 256}


def settings(folder: Path, **more: object) -> EngineSettings:
    """Settings of an engine that keeps snapshots below a directory."""
    changed: dict[str, object] = {"pool_min": 0, "pool_max": 0} | more
    return EngineSettings(snapshots_dir=str(folder / "snapshots"), **changed)  # type: ignore[arg-type]


def programs(seed: int) -> tuple[str, Sequence[str], Sequence[str]]:
    """The template of a program, how it begins, and what it is asked."""
    is_python = seed % OF_PYTHON == 0
    begin, asked = program(seed, PLAIN if is_python else PLAIN | DATA)
    return "python" if is_python else "data", begin, asked


async def answers(sandbox: AsyncSandbox, cells: Sequence[str]) -> list[list[object]]:
    """What a session says, as JSON has it."""
    found: list[list[object]] = []
    for cell in cells:
        done = await sandbox.run(cell)
        error = None if done.error is None else [done.error.name, done.error.value]
        found.append([done.verdict.value, done.stdout, done.stderr, repr(done.results), error])
    return found


def run_killed(folder: Path, seeds: Sequence[int], **environ: str) -> None:
    """Have such an engine live, and end by SIGKILL."""
    ended = subprocess.run(
        [sys.executable, "-m", "kit.copies.killed", str(folder), *map(str, seeds)],
        cwd=TESTS,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


async def _lives(folder: Path, seeds: Sequence[int]) -> None:
    engine = Engine(settings=settings(folder))
    if crash := os.environ.get("CRASH"):
        _crash_before(crash)
    for seed in seeds:
        template, begin, asked = programs(seed)
        sandbox = await engine.create_sandbox(template=template, limits=LIMITS)
        for cell in begin:
            done = await sandbox.run(cell)
            assert done.verdict.value == "ok", done.stderr
        assert (await sandbox.snapshot(f"p{seed}")).durable
        found = json.dumps(await answers(sandbox, asked))
        (folder / f"{seed}.json").write_text(found, encoding="utf-8")
        await sandbox.close()
    os.kill(os.getpid(), signal.SIGKILL)


def _crash_before(name: str) -> None:
    """Have this process end before a call that stores a snapshot."""

    def crash(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if name == "rename":
        Path.rename = crash  # type: ignore[assignment,method-assign]
    else:
        from cellwall.engine.state import snapshot_files

        snapshot_files.encoded = crash  # type: ignore[assignment,attr-defined]


if __name__ == "__main__":
    asyncio.run(_lives(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]))
