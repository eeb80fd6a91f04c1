"""Every command of docs/cluster.md, in its order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.servers import state_of

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(240)]  # its ports

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
_BLOCK = re.compile(r"<!-- runs: (\w+) -->\n```sh\n(.*?)```", re.DOTALL)
_WAIT = {
    "nodes": "for n in 1 2; do until grep -q listening node-$n.out; do sleep 0.1; done; done",
    "gateway": "until [ $(cellwall cluster status | grep -c ready) = 2 ]; do sleep 0.1; done",
}
"""What a reader waits for at the screen."""


def test_every_command_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    blocks = dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert list(blocks) == ["certificates", "settings", "nodes", "gateway", "status", "use"]
    for name in ("node-1", "node-2"):
        (tmp_path / name).mkdir()
        templates = state_of(tmp_path) / "templates"
        (tmp_path / name / "templates").symlink_to(templates.resolve())
    steps = ["set -e", "trap 'kill $(jobs -p); wait' EXIT"]
    for name, text in blocks.items():
        steps += [f"echo '== {name}'", text, _WAIT.get(name, "")]
    environ = {key: text for key, text in os.environ.items() if not key.startswith("CELLWALL_")}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    done = subprocess.run(
        ["timeout", "180", "bash", "-c", "\n".join(steps)],
        check=False,
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = dict(re.findall(r"== (\w+)\n(.*?)(?===|\Z)", done.stdout, re.DOTALL))
    assert said["status"].count("ready") == 2
    assert '"stdout":"42\\n"' in said["use"]
