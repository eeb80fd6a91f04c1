"""Harbor runs trials in cellwall's environment: its oracle solves a task, and its nop does not.

Harbor needs Python 3.12; with an older one these are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.images import archives
from kit.images.archives import config_of, layer

pytest.importorskip("harbor", reason="Harbor is not installed; it needs Python 3.12")
pytestmark = pytest.mark.root
TASK = """schema_version = "1.4"
[metadata]
[verifier]
timeout_sec = 120.0
[agent]
timeout_sec = 120.0
[environment]
build_timeout_sec = 120.0
cpus = 1
memory_mb = 512
network_mode = "no-network"
"""
TEST = """
[ "$(sh /app/sum 40 2)" = 42 ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""


def task(place: Path) -> Path:
    root = layer(archives.python_root())
    archives.docker_archive(place / "base.tar", [root], config_of([root]))
    files = {
        "task.toml": TASK,
        "instruction.md": "Mend /app/sum.",
        "environment/Dockerfile": f"FROM {place}/base.tar\nCOPY app /app\nWORKDIR /app\n",
        "environment/app/sum": "echo $(($1 - $2))\n",
        "solution/solve.sh": "#!/bin/sh\necho 'echo $(($1 + $2))' > sum\n",
        "tests/test.sh": f"#!/bin/sh\n{TEST}",
    }
    for name, content in files.items():
        path = place / "task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    return place / "task"


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_trial(tmp_path: Path, agent: str, reward: float) -> None:
    words = ["run", "-p", str(task(tmp_path)), "-a", agent, "-o", str(tmp_path / "jobs"), "-n", "1"]
    words += ["-e", "cellwall.integrations.harbor:CellwallEnvironment"]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "harbor"), *words],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    (found,) = (tmp_path / "jobs").glob("*/result.json")
    assert json.dumps(reward) in found.read_text(), done.stdout[-3000:]
    (said,) = (tmp_path / "jobs").glob("*/*/verifier/reward.txt")
    assert float(said.read_text()) == reward
