"""Keys while the server runs: made, expired and revoked from the command line and over HTTP.

API-2, 8.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from cellwall.apps.cli.commands import app_of
from cellwall.apps.cli.keys import life
from cellwall.model.errors import CellwallError, UsageError
from cellwall.server.auth.keys import digest_of
from kit.servers import ADMIN, ALICE, MANAGER, Server, configuration, error_of, new_sandbox, start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    made = start(folder, "--port", "0", config=configuration(warm=["python"]))
    yield made
    made.stop()


@dataclass(frozen=True)
class Done:
    """How the command ended."""

    returncode: int
    stdout: str
    stderr: str


def keys(folder: Path, *words: str) -> Done:
    """Run `cellwall keys` as the operator of that server would: here, in another process."""
    runner, environ = CliRunner(), {"CELLWALL_STATE_DIR": str(folder / "state")}
    result = runner.invoke(app_of(["keys"]), ["keys", *words], env=environ)
    if isinstance(result.exception, CellwallError):  # `main` makes a line and a status of it
        return Done(1, result.stdout, str(result.exception))
    return Done(result.exit_code, result.stdout, result.stderr)


def created(folder: Path, *words: str) -> str:
    done = keys(folder, "create", *words)
    assert done.returncode == 0, done.stderr
    (key,) = done.stdout.splitlines()
    return key


def test_a_key_is_printed_as_clients_of_e2b_take_it_too(folder: Path) -> None:
    done = keys(folder, "create", "--tenant", "acme")
    [spelt] = re.findall(r"e2b_[0-9a-f]+", done.stderr)
    assert bytes.fromhex(spelt.removeprefix("e2b_")).decode() == done.stdout.strip()
    assert len(json.loads(keys(folder, "ls", "--json").stdout)) == 1


def wait_accepted(client: httpx.Client) -> None:
    """Return when the server knows the key."""
    deadline = time.monotonic() + 30
    while client.get("/stats").status_code != 200:
        assert time.monotonic() < deadline


def check_refused_from(client: httpx.Client, at: float) -> None:
    """Fail if a request that was sent after `at` (monotonic) is still answered."""
    while True:
        sent = time.monotonic()
        if client.get("/stats").status_code in {401, 429}:  # 429: refused too often before
            return
        assert sent < at


def files_of(folder: Path) -> bytes:
    found = [path for path in (folder / "state" / "server").rglob("*") if path.is_file()]
    assert found
    return b"".join(path.read_bytes() for path in found) + (folder / "server.log").read_bytes()


def test_key_from_the_command_line_works_and_ends_without_a_restart(
    server: Server, folder: Path
) -> None:
    key = created(folder, "--tenant", "carol", "--name", "ci", "--expires", "30d")
    client = server.client(key)
    wait_accepted(client)
    sandbox = new_sandbox(client)
    assert server.client(ALICE).get(f"/sandboxes/{sandbox}").status_code == 404
    assert client.get("/quota").json()["tenant"] == "carol"
    assert client.get("/keys").status_code == 403
    client.delete(f"/sandboxes/{sandbox}")

    listed = json.loads(keys(folder, "ls", "--json").stdout)
    (mine,) = [each for each in listed if each["id"] == digest_of(key)[:12]]
    assert (mine["tenant"], mine["scope"], mine["name"]) == ("carol", "run", "ci")
    assert mine["state"] == "accepted"
    assert 29 * 86_400 < _seconds(mine["expires_at"]) - _seconds(mine["created_at"]) < 31 * 86_400

    done = keys(folder, "revoke", mine["id"])
    assert done.stdout == f"{mine['id']} revoked\n"
    # Promised is one second after the command has ended; the rest is for a busy machine.
    check_refused_from(client, time.monotonic() + 3)
    assert keys(folder, "revoke", mine["id"]).stdout == f"{mine['id']} had been revoked\n"
    assert "revoked" in keys(folder, "ls").stdout


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def test_expired_key_ends_at_once(server: Server, folder: Path) -> None:
    admin = server.client(ADMIN)
    made = admin.post("/keys", json={"tenant": "dave", "expires_s": 5.0}).json()
    expires = time.monotonic() + 5.0
    client = server.client(made["key"])
    assert client.get("/stats").status_code == 200
    with streaming(client) as lines, pytest.raises(httpx.RemoteProtocolError):
        list(lines)  # cut: the key was looked at when it came, and is again
    check_refused_from(client, expires)
    (shown,) = [
        each for each in json.loads(keys(folder, "ls", "--json").stdout) if each["id"] == made["id"]
    ]
    assert shown["state"] == "expired"


def test_key_over_http_is_shown_once_and_ends_at_once(server: Server, folder: Path) -> None:
    admin = server.client(ADMIN)
    answer = admin.post("/keys", json={"tenant": "erin", "scope": "manage", "name": "n"})
    made = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    key = made["key"]
    client = server.client(key)
    assert client.get("/stats").json()["server"]["tenants"] is None  # manage is not admin
    listed = admin.get("/keys")
    assert key not in listed.text
    assert digest_of(key) not in listed.text
    (shown,) = [each for each in listed.json()["keys"] if each["id"] == made["id"]]
    assert {k: v for k, v in made.items() if k != "key"} == shown
    assert shown["source"] == "store"
    assert admin.delete(f"/keys/{made['id']}").json()["message"] == "revoked"
    assert client.get("/stats").status_code in {401, 429}
    assert admin.delete(f"/keys/{made['id']}").json()["message"] == "it had been revoked"
    assert key.encode() not in files_of(folder)
    assert digest_of(key).encode() in files_of(folder)  # the control: it is there, as a digest


@pytest.mark.parametrize("key", [ALICE, MANAGER])
def test_keys_are_the_admins(server: Server, key: str) -> None:
    client = server.client(key)
    for method, path in (("GET", "/keys"), ("POST", "/keys"), ("DELETE", "/keys/0")):
        answer = client.request(method, path, json={"tenant": "x"} if method == "POST" else None)
        assert (answer.status_code, error_of(answer)["code"]) == (403, "forbidden")


def test_keys_of_the_configuration_are_listed_and_left_alone(server: Server) -> None:
    admin = server.client(ADMIN)
    listed = admin.get("/keys").json()["keys"]
    mine = [each for each in listed if each["source"] == "configuration"]
    assert digest_of(ALICE)[:12] in [each["id"] for each in mine]
    answer = admin.delete(f"/keys/{digest_of(ALICE)[:12]}")
    assert (answer.status_code, error_of(answer)["code"]) == (409, "conflict")
    assert server.client(ALICE).get("/stats").status_code == 200
    assert admin.delete("/keys/000000000000").status_code == 404


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--expires", "soon"], "30d"), (["--scope", "root"], "scope"), (["--tenant", ""], "tenant"),
     (["--name", "x" * 65], "name"), (["--expires", "999999w"], "100 years"),
     (["--store", "nonsense:"], "store")],
)  # fmt: skip
def test_wrong_words_make_no_key(folder: Path, server: Server, words: list[str], says: str) -> None:
    before = keys(folder, "ls", "--json").stdout
    done = keys(folder, "create", *words)
    assert done.returncode != 0
    assert says in done.stderr
    assert "cw_" not in done.stdout
    assert keys(folder, "ls", "--json").stdout == before


def test_store_can_be_named_from_elsewhere(folder: Path, server: Server) -> None:
    """The command as a program of its own, with a state directory that is not the server's."""
    url = f"sqlite:///{folder / 'state' / 'server' / 'cellwall.db'}"
    done = subprocess.run(
        [sys.executable, "-m", "cellwall.apps.cli.main", "keys", "create", "--store", url],
        env={**os.environ, "CELLWALL_STATE_DIR": str(folder / "elsewhere")},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    wait_accepted(server.client(done.stdout.strip()))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("12h", 43_200), ("30d", 2_592_000)]
)
def test_life_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert life(text) == seconds
    for wrong in ("", "d", "30", "-1d", "1.5h", "1 d", "30D"):
        with pytest.raises(UsageError):
            life(wrong)


@contextmanager
def streaming(client: httpx.Client) -> Iterator[Iterator[str]]:
    """A program that prints until it is stopped, and its lines as they come."""
    body = {"code": "import time\nwhile True: print(1, flush=True); time.sleep(0.1)"}
    accept = {"accept": "application/x-ndjson"}
    with client.stream("POST", "/execute", json=body, headers=accept, timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        yield lines


def test_streams_and_terminals_end_with_their_key(server: Server) -> None:
    admin = server.client(ADMIN)
    made = [admin.post("/keys", json={"tenant": "frank"}).json() for _ in range(2)]
    doomed, other = (server.client(each["key"]) for each in made)
    sandbox = new_sandbox(doomed)
    address = f"ws://127.0.0.1:{server.port}/sandboxes/{sandbox}/terminal"
    headers = {"X-API-Key": made[0]["key"]}
    with (
        streaming(doomed) as lines,
        streaming(other) as control,
        connect(address, additional_headers=headers) as terminal,
    ):
        terminal.recv(timeout=20)
        admin.delete(f"/keys/{made[0]['id']}")
        with pytest.raises(httpx.RemoteProtocolError):  # cut, not ended: there is no last line
            list(lines)
        with pytest.raises(ConnectionClosed):
            list(terminal)
        next(control)  # the tenant's other key is nobody's business
    assert other.get(f"/sandboxes/{sandbox}").json()["status"] == "running"
    other.delete(f"/sandboxes/{sandbox}")
