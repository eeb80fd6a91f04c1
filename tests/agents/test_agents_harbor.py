"""Harbor runs tasks of many kinds: by its own environment for E2B, and by cellwall's class.

Its oracle solves each of `harbor_tasks`, and its nop none. Harbor needs Python 3.12, so both run in
the root of a newer Debian (`kit.agents.newer_debian`); `make harbor`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.agents import newer_debian
from kit.agents.harbor_house import TASKS, House, house
from kit.server.e2b_doors import e2b_server
from kit.servers import MANAGER

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]
CLASS = "cellwall.integrations.harbor:CellwallEnvironment"
NAMES = {path.name for path in TASKS.iterdir()}
VERIFIER_ASKED = ["files.test", "a.wild.test"]
"""What reached the outside: pages of the verifier's list, and none that an agent asked for."""
ARTIFACTS = {
    "manifest.json",
    "logs/artifacts/published.txt",
    "srv/report.txt",
    "out/one.txt",
    "out/deep/two.txt",
    "out/large.bin",
}


@dataclass
class Job:
    """What Harbor has written of a job."""

    folder: Path
    said: str

    def results(self) -> dict[str, dict[str, Any]]:
        found = (json.loads(path.read_text()) for path in self.folder.glob("*/*/result.json"))
        return {each["task_name"]: each for each in found}

    def rewards(self) -> dict[str, float]:
        return {
            name: (each["verifier_result"] or {"rewards": {}})["rewards"].get("reward", -1)
            for name, each in self.results().items()
        }

    def exceptions(self) -> dict[str, str]:
        return {
            name: each["exception_info"]["exception_type"]
            for name, each in self.results().items()
            if each["exception_info"] is not None
        }

    def artifacts(self, task: str) -> set[str]:
        (folder,) = self.folder.glob(f"*/{task}__*/artifacts")
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def run(place: Path, agent: str, environment: str, variables: Mapping[str, str], *more: str) -> Job:
    programs = newer_debian.programs_of("suite-harbor", "harbor")
    words = ["run", "-p", str(TASKS), "-a", agent, "-o", str(place / "jobs"), "-n", "2", "-y"]
    done = newer_debian.inside(
        programs / "harbor",
        *words,
        *("-e", environment, *more),
        env={**variables, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        timeout=600,
    )
    return Job(place / "jobs", done.stdout[-4000:] + done.stderr[-4000:])


@contextmanager
def door(around: House) -> Iterator[dict[str, str]]:
    """A server with the door of E2B's; its variables, and nothing left of what was made there."""
    tier = "[tiers.small]\nbuilds = 2\n[tenants]\nmanager = 'small'\n"
    kept = "template_env = true\n"  # tasks say in ENV what their sandboxes have
    made = e2b_server(tier, kept, engine=around.engine, images=["debian:*"], templates_mb=8000)
    with made as server:
        yield server.variables(MANAGER)
        assert server.client(MANAGER).get("/v2/sandboxes").json() == []


def check(job: Job, agent: str) -> None:
    value = {"oracle": 1.0, "nop": 0.0}[agent]
    late = {"run-out-of-time": "AgentTimeoutError"} if agent == "oracle" else {}
    assert job.exceptions() == late, job.said
    assert job.rewards() == dict.fromkeys(NAMES, value), job.said
    if agent == "oracle":
        assert job.artifacts("publish") == ARTIFACTS
        assert (job.results()["two-steps"]["step_results"] or [{}])[-1]["step_name"] == "answer"


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_tasks_by_harbor_s_own_environment_for_e2b(tmp_path: Path, agent: str) -> None:
    with house() as around, door(around) as variables:
        check(run(tmp_path, agent, "e2b", variables), agent)
        assert around.asked() == VERIFIER_ASKED


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_tasks_by_cellwall_s_class(tmp_path: Path, agent: str) -> None:
    with house() as around:
        check(run(tmp_path, agent, CLASS, around.variables), agent)
        assert around.asked() == VERIFIER_ASKED
