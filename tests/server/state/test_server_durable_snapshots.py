"""Snapshots outlive a server, by REST and by the SDK: its end, its kill, and what still counts."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import cellwall
from cellwall.model.errors import Conflict
from kit.servers import ALICE, BOB, Server, configuration, error_of, new_sandbox, run_cell, start

pytestmark = [pytest.mark.root]
SET = "value = 41\nopen('/home/user/note.txt', 'w').write('kept')"
TELL = "print(value + 1, open('/home/user/note.txt').read())"


@contextlib.contextmanager
def _server(folder: Path, more: str = "", /, **settings: object) -> Iterator[Server]:
    """A server of one state directory."""
    made = start(folder, "--port", "0", config=configuration(more, **settings))
    try:
        yield made
    finally:
        made.stop()


def _kept(client: httpx.Client, name: str, **body: object) -> str:
    sandbox = new_sandbox(client)
    run_cell(client, f"/sandboxes/{sandbox}", SET)
    made = client.post(f"/sandboxes/{sandbox}/snapshots", json={"name": name, **body})
    assert made.status_code == 201, made.text
    assert made.json()["durable"] is True
    return str(made.json()["id"])


def _restored(client: httpx.Client, wanted: str) -> str:
    """Where the sandbox is that was made of a snapshot."""
    made = client.post(f"/snapshots/{wanted}/restore", json={})
    assert made.status_code == 201, made.text
    place = str(made.headers["location"])
    assert run_cell(client, place, TELL)["stdout"] == "42 kept\n"
    return place


def _names(client: httpx.Client) -> list[str]:
    return [each["name"] for each in client.get("/snapshots").json()["snapshots"]]


def test_snapshot_goes_on_after_a_restart_and_after_a_kill(tmp_path: Path) -> None:
    with _server(tmp_path) as server:
        made = _kept(server.client(), "first")
        _kept(server.client(BOB), "bobs")
        assert server.stop() == 0
    with _server(tmp_path) as server:
        client = server.client()
        assert _names(client) == ["first"]
        place = _restored(client, "first")
        more = client.post(f"{place}/snapshots", json={"name": "second"})
        assert more.status_code == 201, more.text
        server.process.kill()
        server.process.wait(10)
    with _server(tmp_path) as server:
        client = server.client()
        assert _names(client) == ["first", "second"]
        _restored(client, "second")
        assert client.post(f"/snapshots/{made}/restore", json={}).status_code == 201
        for wanted in (made, "first"):
            assert server.client(BOB).get(f"/snapshots/{wanted}").status_code == 404
            assert server.client(BOB).delete(f"/snapshots/{wanted}").status_code == 404
            foreign = server.client(BOB).post(f"/snapshots/{wanted}/restore", json={})
            assert foreign.status_code == 404
        assert client.delete("/snapshots/first").status_code == 200
    with _server(tmp_path) as server:
        assert _names(server.client()) == ["second"]
        assert _names(server.client(BOB)) == ["bobs"]
        with cellwall.connect(server.address, ALICE) as sdk:
            (found,) = sdk.snapshots.list()
            assert (found.name, found.durable) == ("second", True)
            assert sdk.restore("second").run(TELL).stdout == "42 kept\n"


def test_quota_and_expiry_hold_after_a_restart(tmp_path: Path) -> None:
    quota = "[tiers.default]\nsnapshots_mb = 12\n"
    with _server(tmp_path, quota) as server:
        client = server.client()
        sandbox = new_sandbox(client)
        run_cell(client, f"/sandboxes/{sandbox}", "import os; big = os.urandom(5 << 20)")
        place = f"/sandboxes/{sandbox}/snapshots"
        assert client.post(place, json={"name": "big"}).status_code == 201
    with _server(tmp_path, quota) as server:
        client = server.client()
        assert 5 < client.get("/quota").json()["use"]["snapshots_mb"] < 12
        sandbox = new_sandbox(client)
        run_cell(client, f"/sandboxes/{sandbox}", "import os; big = os.urandom(5 << 20)")
        refused = client.post(f"/sandboxes/{sandbox}/snapshots", json={})
        assert (refused.status_code, error_of(refused)["quota"]) == (429, "snapshots_mb")
        assert client.delete("/snapshots/big").status_code == 200
        assert client.get("/quota").json()["use"]["snapshots_mb"] == 0
        short = client.post(f"/sandboxes/{sandbox}/snapshots", json={"expires_s": 1})
        assert short.status_code == 201  # the control
        time.sleep(1.0)
    with _server(tmp_path, quota) as server:
        assert _names(server.client()) == []
        assert server.client().get("/quota").json()["use"]["snapshots_mb"] == 0


def test_limits_above_what_is_allowed_now_are_refused(tmp_path: Path) -> None:
    """The operator has lowered a ceiling since; with the one before it goes on."""
    with _server(tmp_path) as server:
        client = server.client()
        sandbox = new_sandbox(client, limits={"memory_mb": 640})
        run_cell(client, f"/sandboxes/{sandbox}", SET)
        place = f"/sandboxes/{sandbox}/snapshots"
        assert client.post(place, json={"name": "large"}).status_code == 201
    with _server(tmp_path, "[most]\nmemory_mb = 600\n") as server:
        refused = server.client().post("/snapshots/large/restore", json={})
        assert refused.status_code == 400, refused.text
        assert "memory_mb" in error_of(refused)["message"]
        assert "[most]" in error_of(refused)["remedy"]
        live = server.client().get("/sandboxes", params={"state": "live"})
        assert live.json()["sandboxes"] == []
    with _server(tmp_path) as server:  # the control
        _restored(server.client(), "large")


def test_server_with_another_key_refuses_and_says_so(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(os.urandom(32).hex(), encoding="ascii")
        (tmp_path / name).chmod(0o600)

    def engine(name: str) -> str:
        return f'[engine]\nsnapshots_key_file = "{tmp_path / name}"\n'

    with _server(tmp_path, engine("one")) as server:
        _kept(server.client(), "sealed")
    with _server(tmp_path, engine("two")) as server:
        refused = server.client().post("/snapshots/sealed/restore", json={})
        assert (refused.status_code, error_of(refused)["code"]) == (409, "conflict")
        assert "encrypted with another key" in error_of(refused)["message"]
        with cellwall.connect(server.address, ALICE) as sdk:
            with pytest.raises(Conflict, match="encrypted with another key"):
                sdk.restore("sealed")
            sdk.run("0")
    with _server(tmp_path, engine("one")) as server:
        _restored(server.client(), "sealed")  # the control


def test_server_without_a_store_keeps_no_snapshot(tmp_path: Path) -> None:
    with _server(tmp_path, store="none") as server:
        client = server.client()
        made = client.post(f"/sandboxes/{new_sandbox(client)}/snapshots", json={"name": "x"})
        assert made.json()["durable"] is False
    with _server(tmp_path, store="none") as server:
        assert _names(server.client()) == []
