"""`cellwall backup` beside a running server, and what a restored one says of what it held."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.engine.templates.store import state_dir
from kit.server.crashes import died, house, program, selected
from kit.servers import configuration, start

_NAMED = "import os; open('/tmp/x', 'w'); print('ran')"
_LONG = "import time; time.sleep(60)"


def cellwall(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cellwall.apps.cli.main", *words],
        env={**os.environ, "CELLWALL_STATE_DIR": str(state)},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Give a state directory of its own with the session's templates."""
    made = tmp_path / "state"
    made.mkdir()
    (made / "templates").symlink_to(state_dir() / "templates")
    return made


def test_backup_of_a_running_server_is_whole_and_comes_back(state: Path, tmp_path: Path) -> None:
    copy = tmp_path / "records.backup"
    environ = {"CELLWALL_STATE_DIR": str(state)}
    config = configuration(most_running=1)
    server = start(tmp_path, "--port", "0", config=config, environ=environ)
    with server.client() as client:
        ended = client.post("/execute", json={"code": _NAMED}).json()["execution_id"]
        ids = [
            client.post("/execute", json={"code": code, "background": True}).json()["execution_id"]
            for code in (_LONG, _NAMED)
        ]
        assert cellwall(state, "backup", str(copy)).returncode == 0
        refused = cellwall(state, "restore", str(copy))
        assert (refused.returncode, "another server" in refused.stderr) == (125, True)
        later = client.post("/execute", json={"code": "1", "background": True}).json()
    server.stop()

    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.glob("records.*")] == ["records.backup"]
    done = cellwall(state, "restore", str(copy))
    assert done.returncode == 0, done.stderr
    again = start(tmp_path, "--port", "0", config=config, environ=environ)
    with again.client() as client:
        assert client.get(f"/executions/{ended}").json()["stdout"] == "ran\n"
        verdicts = [client.get(f"/executions/{each}").json()["verdict"] for each in ids]
        assert verdicts == ["interrupted", "interrupted"]  # the second may have run since
        assert client.get(f"/executions/{later['execution_id']}").status_code == 404
    again.stop()
    kept = state / "server" / "cellwall.db.before-1"
    assert (later["execution_id"],) in selected(kept, "SELECT id FROM executions")


def test_backup_after_a_kill_has_what_was_written_last(tmp_path: Path) -> None:
    """What only the journal has until somebody opens the database."""
    store = tmp_path / "state" / "server" / "cellwall.db"
    with house(tmp_path) as made:
        died(made.start(kill="after:Ended").client(), {"code": program("a")})
        assert ended_in(store) == 0  # the control
        done = cellwall(tmp_path / "state", "backup", str(tmp_path / "copy"))
        assert done.returncode == 0, done.stderr
        assert ended_in(tmp_path / "copy") == 1
        made.start()  # the backup left everything as a server wants it


def ended_in(database: Path) -> int:
    return len(selected(database, "SELECT id FROM executions WHERE state = 'ended'"))


@pytest.mark.parametrize("kind", ["text", "foreign", "damaged", "missing"])
def test_what_is_no_backup_changes_nothing(kind: str, state: Path, tmp_path: Path) -> None:
    store = state / "server" / "cellwall.db"
    environ = {"CELLWALL_STATE_DIR": str(state)}
    start(tmp_path, "--port", "0", config=configuration(), environ=environ).stop()
    before, names = store.read_bytes(), {path.name for path in store.parent.iterdir()}
    copy = tmp_path / "copy"
    if kind == "text":
        copy.write_text("not a database")
    if kind == "foreign":
        with sqlite3.connect(copy) as database:
            database.execute("CREATE TABLE other (x)")
    if kind == "damaged":
        assert cellwall(state, "backup", str(copy)).returncode == 0
        whole = copy.read_bytes()
        copy.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    done = cellwall(state, "restore", str(copy))
    assert (done.returncode, str(copy) in done.stderr) == (125, True)
    assert store.read_bytes() == before
    assert {path.name for path in store.parent.iterdir()} == names


def test_a_backup_never_overwrites(state: Path, tmp_path: Path) -> None:
    environ = {"CELLWALL_STATE_DIR": str(state)}
    assert "no store" in cellwall(state, "backup", str(tmp_path / "x")).stderr
    start(tmp_path, "--port", "0", config=configuration(), environ=environ).stop()
    taken = tmp_path / "taken"
    shutil.copyfile(__file__, taken)
    done = cellwall(state, "backup", str(taken))
    assert (done.returncode, "there already" in done.stderr) == (125, True)
    assert taken.read_bytes() == Path(__file__).read_bytes()
