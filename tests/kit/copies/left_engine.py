"""An engine that is killed and leaves its sandboxes: `python -m … DIRECTORY HOW NAME…`.

Not a test. HOW is `look` to be killed while a session that is forked stands still and waits for the
host, `unkept` to have no place for snapshots, or a number: so many sessions are left, once they can
be copied. The last one is kept as a snapshot of each NAME first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cellwall import Engine, EngineSettings
from cellwall.runtimes.jail.runtime import JailRuntime
from cellwall.runtimes.jail.sandbox import JailSandbox
from cellwall.runtimes.jail.stored import standing
from kit.copies.killed import settings
from kit.places import TESTS

BEGIN = "x = 41\ndef walk():\n    yield from range(99)\nsteps = walk(); next(steps)"


def run_left(folder: Path, how: str, *names: str) -> None:
    """Have such an engine live, and end by SIGKILL."""
    ended = subprocess.run(
        [sys.executable, "-m", "kit.copies.left_engine", str(folder), how, *names],
        cwd=TESTS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL


def engine(folder: Path, *, stores: bool = True) -> Engine:
    """Return an engine that leaves its sandboxes, and takes over those that were left."""
    plain = EngineSettings(pool_min=0, pool_max=0)
    return Engine(folder / "state", settings(folder) if stores else plain, keeps_sandboxes=True)


def end(*_: object) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


async def _lives(folder: Path, how: str, names: Sequence[str]) -> None:
    (folder / "state").mkdir(exist_ok=True)
    made = engine(folder, stores=how != "unkept")
    runtime = await made.runtime(name="jail")
    assert isinstance(runtime, JailRuntime)
    count = int(how) if how.isdigit() else 1
    sandboxes = [await made.create_sandbox(env={"OWN": "mine"}) for _ in range(count)]
    for sandbox in sandboxes:
        assert (await sandbox.run(BEGIN)).verdict.value == "ok"
    await runtime.copier.wait_kept(60)
    for name in names:
        await sandbox.snapshot(name)
    held = sandbox.live.runtime_sandbox
    assert isinstance(held, JailSandbox)
    assert (held.base is None) == (how == "unkept")
    if how == "look":
        standing.Standing.looker = lambda *_: end  # type: ignore[method-assign]
        await sandbox.fork()
    end()


if __name__ == "__main__":
    asyncio.run(_lives(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
