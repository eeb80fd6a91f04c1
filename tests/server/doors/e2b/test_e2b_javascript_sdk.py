"""The unmodified JavaScript SDK against the control plane of the E2B door, and its builder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Require
from kit.server.e2b_doors import E2BServer
from kit.server.e2b_templates import workshop
from kit.servers import MANAGER

_SCRIPTS = Path(__file__).parent / "javascript"
_MODULES = Path(sys.prefix) / "javascript" / "node_modules"
_REMEDY = f"run: npm install --prefix {_MODULES.parent} e2b@^2.51 @e2b/code-interpreter@^2.8"


def test_the_javascript_client_works_by_its_three_variables(
    e2b: E2BServer, require: Require
) -> None:
    assert ran(require, "control.cjs", e2b.variables()) == (0, "done\n", "")


@pytest.mark.root
def test_the_javascript_client_builds_templates(require: Require) -> None:
    with workshop() as shop:
        given = {**shop.e2b.variables(MANAGER), "IMAGE": shop.image}
        assert ran(require, "templates.cjs", given) == (0, "done\n", "")


def ran(require: Require, script: str, variables: dict[str, str]) -> tuple[int, str, str]:
    require("e2b for Node.js", (_MODULES / "e2b").is_dir(), _REMEDY)
    env = {**os.environ, **variables, "NODE_PATH": str(_MODULES)}
    argv = ["node", str(_SCRIPTS / script)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=50, check=False)
    return done.returncode, done.stdout, done.stderr
