"""A part of the server's suites through a gateway; all of them are `make cluster`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kit.ci.share import without_shares
from kit.cluster.switch import VARIABLE
from kit.places import ROOT

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

SUITES = (
    "tests/server/streams/test_server_streams.py",
    "tests/server/sandboxes/test_server_execute.py",
    "tests/server/sandboxes/test_server_terminal.py",
)


@pytest.mark.skipif(os.environ.get(VARIABLE) == "1", reason="this run is all of it")
def test_suites_of_a_server_pass_through_a_gateway() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES],
        check=False,
        cwd=ROOT,
        env={**without_shares(), VARIABLE: "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
