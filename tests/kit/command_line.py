"""`cellwall` as its users start it: a process of its own, with the level the tests are held to."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

LEVEL = os.environ.get("CELLWALL_TEST_ISOLATION", "namespace")
Done = subprocess.CompletedProcess[str]


def start(*words: str, stdin: str = "", **environ: str) -> Done:
    env = {**os.environ, "CELLWALL_ALLOW_PROCESS": "1" if LEVEL == "process" else "0", **environ}
    return subprocess.run(
        [sys.executable, "-m", "cellwall.apps.cli.main", *words],
        input=stdin, capture_output=True, check=False, encoding="utf-8", env=env, timeout=50,
    )  # fmt: skip


@cache
def works() -> str:
    """Return why no sandbox can be had here, or nothing."""
    done = start("run", "--isolation", LEVEL, "-c", "print(1)")
    return "" if done.stdout == "1\n" else done.stderr
