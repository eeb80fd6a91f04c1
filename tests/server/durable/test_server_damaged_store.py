"""FI-15, FI-44 as an operator meets them: a server does not start on a store it cannot trust.

What is damaged how is in `test_store_file`; here the program's end counts: a status, the words, and
that nothing took the place of what was there. Control: the same state directory, undamaged.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.servers import Server, configuration, start, state_of

_CONFIG = configuration(warm=[])


def _started(folder: Path) -> Server:
    return start(folder, "--port", "0", config=_CONFIG)


def _garbage(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * 100)


def _newer(path: Path) -> None:
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("UPDATE alembic_version SET version_num = 'v9999'")
    base.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [(_garbage, "overwritten"), (Path.unlink, "is gone"), (_newer, "version 'v9999'")],
)
def test_server_does_not_start_on_a_damaged_store(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    execution = _execution_of(tmp_path)
    server = _started(tmp_path)
    found = server.client().get(f"/executions/{execution}")
    assert (found.status_code, server.stop()) == (200, 0)  # the control
    path = tmp_path / "state" / "server" / "cellwall.db"
    damage(path)
    before = path.read_bytes() if path.exists() else None
    done = subprocess.run(
        [sys.executable, "-m", "cellwall.apps.cli.main", "serve", "--port", "0",
         "--config", tmp_path / "cellwall.toml"],
        env={**os.environ, "CELLWALL_STATE_DIR": str(state_of(tmp_path))},
        capture_output=True, text=True, check=False, timeout=40,
    )  # fmt: skip
    assert done.returncode not in {0, 1}
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert (path.read_bytes() if path.exists() else None) == before


def _execution_of(folder: Path) -> str:
    server = _started(folder)
    found = str(server.client().post("/execute", json={"code": "1"}).json()["execution_id"])
    assert server.stop() == 0
    return found
