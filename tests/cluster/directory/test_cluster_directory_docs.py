"""Every command of "Several gateways" in docs/cluster.md, in its order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.test_cluster_docs import PAGE
from kit.postgres_server import Postgres
from kit.servers import state_of

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(240)]  # its ports

_BEFORE = re.compile(r"<!-- runs: (certificates|settings|nodes) -->\n```sh\n(.*?)```", re.DOTALL)
_BLOCK = re.compile(r"<!-- directory: (\w+) -->\n```sh\n(.*?)```", re.DOTALL)
_WAIT = {
    "nodes": "for n in 1 2; do until grep -q listening node-$n.out; do sleep 0.1; done; done",
    "gateways": "for n in 1 2; do until grep -q listening gate-$n.out; do sleep 0.1; done; done\n"
    "for p in 7440 7450; do until [ $(CELLWALL_URL=http://127.0.0.1:$p cellwall cluster status "
    "| grep -c ready) = 2 ]; do sleep 0.1; done; done",
}
"""What a reader waits for at the screen."""


def test_every_command_of_the_section_does_what_it_says(tmp_path: Path, postgres: Postgres) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = [*_BEFORE.findall(page), *_BLOCK.findall(page)]
    assert [name for name, _ in blocks][3:] == ["init", "gateways", "use"]
    for name in ("node-1", "node-2"):
        (tmp_path / name).mkdir()
        templates = state_of(tmp_path) / "templates"
        (tmp_path / name / "templates").symlink_to(templates.resolve())
    steps = ["set -e", "trap 'kill $(jobs -p); wait' EXIT"]
    for name, text in blocks:
        steps += [f"echo '== {name}'", text, _WAIT.get(name, "")]
    environ = {key: text for key, text in os.environ.items() if not key.startswith("CELLWALL_")}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ |= {"PGHOST": str(postgres.folder), "PGUSER": "cellwall"}
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
    assert "cellwall_gateway" in said["init"]
    first, second = re.findall(r'"stdout":"([0-9a-f]{16})\\n"', said["use"])
    assert first == second
