"""The unmodified JavaScript SDK against the control plane of the E2B door."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import Require
from kit.server.e2b_doors import E2BServer

_SCRIPT = Path(__file__).parent / "javascript" / "control.cjs"
_MODULES = Path(sys.prefix) / "javascript" / "node_modules"
_REMEDY = f"run: npm install --prefix {_MODULES.parent} e2b@^2.51 @e2b/code-interpreter@^2.8"


def test_the_javascript_client_works_by_its_three_variables(
    e2b: E2BServer, require: Require
) -> None:
    require("e2b for Node.js", (_MODULES / "e2b").is_dir(), _REMEDY)
    env = {**os.environ, **e2b.variables(), "NODE_PATH": str(_MODULES)}
    done = subprocess.run(
        ["node", str(_SCRIPT)], env=env, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
