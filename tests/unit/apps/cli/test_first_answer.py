"""What a process imports until its first answer: each of them pays for all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from kit.command_line import LEVEL

_FOUND = """
import json, sys
ours = [name for name in sys.modules if name.partition(".")[0] == "cellwall"]
sys.stderr.write(json.dumps({"ours": ours, "all": list(sys.modules)}))
"""
_COMMAND = f"""
import atexit, sys
atexit.register(lambda: exec({_FOUND!r}, {{}}))
sys.argv[1:] = ["run", "--isolation", {LEVEL!r}, "-c", "print(6 * 7)"]
from cellwall.apps.cli.main import main
main()
"""
_LIBRARY = f"""
import cellwall
print(cellwall.run("print(6 * 7)", isolation={LEVEL!r}).stdout, end="")
exec({_FOUND!r})
"""
_FAR = {"tarfile", "shutil", "tempfile", "secrets", "random", "zipfile", "uuid", "urllib.request"}
_MOST_OF_OURS = 225


def _found(code: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8"
    )
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return found


@pytest.mark.parametrize("code", [_COMMAND, _LIBRARY], ids=["command", "library"])
def test_a_first_answer_imports_little(code: str) -> None:
    if "COVERAGE_PROCESS_START" in os.environ:
        pytest.skip("coverage imports for itself")
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, check=True
    )
    found = _found(code)
    assert _FAR & (set(found["all"]) - set(bare.stdout.decode().split())) == set()
    assert len(found["ours"]) <= _MOST_OF_OURS


def test_names_that_are_forbidden_exist() -> None:
    assert all(import_module(name) for name in _FAR)
