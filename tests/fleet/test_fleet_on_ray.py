"""Fleets on real clusters of Ray's: at work, without tokens, and with machines that are lost.

Each suite runs in the environment of Ray's wheel, in a network namespace of its own, in which it
makes a cluster of several machines. `make fleet` takes ten thousand programs through each loss.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import require_capability
from kit.agents.other_environment import python_of, run_suite
from kit.places import TESTS

SUITES = Path(__file__).with_name("suites")
MANY = "10000"

pytestmark = [pytest.mark.root, pytest.mark.cgroups, pytest.mark.alone]
Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a suite; all of its tests have to pass."""
    for command, package in (("nft", "nftables"), ("unshare", "util-linux"), ("ip", "iproute2")):
        found = shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        require_capability(command, found is not None, f"run: apt-get install {package}")
    python = python_of("suite-ray", "ray")
    alone = tmp_path / "python"
    # Not `ip netns exec`: it mounts /sys anew, and engines find no cgroups then.
    alone.write_text(f'#!/bin/sh\nexec unshare --net {python} "$@"\n')
    alone.chmod(0o755)

    def suite(name: str, passed: int, timeout: float, **env: str) -> None:
        variables = {"PYTHONPATH": str(TESTS), **env}
        limits = ("--timeout=120", "-x") if not env else ("--timeout=1200",)
        done = run_suite(alone, SUITES / name, tmp_path, *limits, env=variables, timeout=timeout)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert f"{passed} passed" in done.stdout

    return suite


@pytest.mark.timeout(300)
def test_a_fleet_at_work(run: Run) -> None:
    run("fleet_suite.py", 16, 280)


@pytest.mark.timeout(120)
def test_a_cluster_without_tokens(run: Run) -> None:
    run("open_suite.py", 3, 100)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_machines_that_are_lost(run: Run) -> None:
    run("losses_suite.py", 10, 580)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_machines_that_are_lost_among_many_programs(run: Run) -> None:
    run("losses_suite.py", 10, 5300, CELLWALL_TEST_FLEET_PROGRAMS=MANY)
