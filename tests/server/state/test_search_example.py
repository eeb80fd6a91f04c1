"""examples/search_a_session.py as it is, with a smaller frame: over a restart of its server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.places import ROOT
from kit.servers import state_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]
STEPS = (
    "load 100000 rows", "fork 16 ways", "try and score each", "keep the best as a snapshot",
    "go on from the snapshot", "try a window beside it",
)  # fmt: skip


def test_search_over_a_session_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Each step says how long it took and what it holds; the best fork's values are there."""
    environ = {**os.environ, "CELLWALL_STATE_DIR": str(state_of(tmp_path))}
    for name in ("CELLWALL_API_KEY", "CELLWALL_CONFIG", "CELLWALL_URL"):
        environ.pop(name, None)
    argv = [sys.executable, str(ROOT / "examples" / "search_a_session.py"), "100000"]
    done = subprocess.run(argv, capture_output=True, check=False, env=environ, timeout=230)
    text = done.stdout.decode()
    assert done.returncode == 0, text + done.stderr.decode()
    for step in STEPS:
        found = re.search(rf"^{step} +([\d.]+) ms +([\d.]+) MiB$", text, re.MULTILINE)
        assert found, (step, text)
        assert float(found[2]) > 0
    best = re.search(r"^the best of 16 is (\S+), window (\d+)$", text, re.MULTILINE)
    after = re.search(r"^it had (\d+) (\S+); the next try gives \S+$", text, re.MULTILINE)
    assert best is not None, text
    assert after is not None, text
    assert (after[1], f"{float(after[2]):.2f}") == (best[2], best[1])
