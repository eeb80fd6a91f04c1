"""No space for the database: refused with 507's error, nothing half written, good again with space.

The disk is a tmpfs of two mebibytes in a mount namespace of its own; a file limit stands in for a
quota. Both run in a child, whose whole story is in `full_disk_writer.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cellwall.store.store import Store
from conftest import Require
from kit.places import TESTS
from kit.stores import with_store

WRITER = TESTS / "kit" / "faults" / "full_disk_writer.py"


def story(way: str, folder: Path) -> dict[str, Any]:
    """Run the writer on a disk that is full because of `way`; return what it saw."""
    wrapper = ["unshare", "--user", "--map-root-user", "--mount"] if way == "tmpfs" else []
    done = subprocess.run(
        [*wrapper, sys.executable, WRITER, way, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr.decode()
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.fixture(params=["tmpfs", "file limit"])
def full(request: pytest.FixtureRequest, tmp_path: Path, require: Require) -> dict[str, Any]:
    if request.param == "tmpfs":
        trial = ["unshare", "--user", "--map-root-user", "--mount", "true"]
        can = shutil.which("unshare") and subprocess.run(trial, check=False).returncode == 0
        require("namespaces", bool(can), "a user may not make a mount namespace here")
    return {"folder": tmp_path, **story(request.param, tmp_path)}


def test_full_disk_refuses_and_loses_nothing(full: dict[str, Any]) -> None:
    assert full["before"] > 0
    assert full["accept when full"] == "StoreFull"
    assert full["end when full"] == "StoreFull"
    assert full["read when full"] == "running"
    assert full["end with space"] == "written"
    assert full["accept with space"] == "written"


def test_full_disk_leaves_a_whole_database(full: dict[str, Any]) -> None:
    path = full["folder"] / "after/cellwall.db"
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()

    async def work(store: Store) -> None:
        found = {row.id for row in await store.queued(0, 100_000)}
        assert found == set(full["told"]) - {"ex1"}
        row = await store.execution("ex1")
        assert row is not None
        assert row.answer == {"verdict": "ok"}

    with_store(f"sqlite:///{path}", work)
