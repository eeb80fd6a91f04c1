"""A sandbox's network over HTTP, by the SDK and from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import cellwall
from cellwall.model.errors import UsageError
from kit.outside.name_server import NameServer
from kit.outside.servers import OUTSIDE, WebServer
from kit.servers import ADMIN, ALICE, Server, error_of, new_sandbox, run_cell, running

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with WebServer() as made:
        yield made


@pytest.fixture(scope="module")
def names() -> Iterator[NameServer]:
    with NameServer({"web.test": [OUTSIDE]}) as made:
        yield made


@pytest.fixture(scope="module")
def connected(names: NameServer) -> Iterator[Server]:
    """A server whose operator lists the tests' outside."""
    engine = f"[engine]\nnetwork_addresses = ['127.0.1.0/24']\nname_servers = ['{names.address}']\n"
    with running(engine) as made:
        yield made


def _get(url: str) -> str:
    return f"import urllib.request; print(urllib.request.urlopen('{url}', timeout=10).status)"


def test_a_policy_at_the_creation_and_changed_afterwards(connected: Server, web: WebServer) -> None:
    client, url = connected.client(), f"http://web.test:{web.port}/"
    made = client.post("/sandboxes", json={"network": [f"web.test:{web.port}"]}).json()
    assert made["network"]["allow"][0]["host"] == "web.test"
    place = f"/sandboxes/{made['id']}"
    first = run_cell(client, place, _get(url))
    assert first["stdout"] == "200\n"
    assert first["usage"]["network"]["connections"] == 1
    put = client.put(f"{place}/network", json={"allow": []})
    assert (put.status_code, put.json()["policy"]) == (200, {**put.json()["policy"], "allow": []})
    assert run_cell(client, place, _get(url))["verdict"] == "exception"
    seen = client.get(f"{place}/network").json()
    assert seen["usage"]["connections"] == 1
    assert seen["usage"]["refused"] >= 1
    events = [each["event"] for each in client.get(f"{place}/network/log").json()["records"]]
    assert events[:2] == ["open", "close"]
    assert "refused" in events
    assert client.get(place).json()["network"]["allow"] == []
    put = client.put(f"{place}/network", json={"mode": "none"})
    assert put.json()["policy"] == {"mode": "none"}


def test_a_program_has_its_own(connected: Server, web: WebServer) -> None:
    client, url = connected.client(), f"http://web.test:{web.port}/"
    body = {"code": _get(url), "network": {"allow": [{"host": "web.test", "ports": [web.port]}]}}
    answer = client.post("/execute", json=body).json()
    assert (answer["stdout"], answer["usage"]["network"]["connections"]) == ("200\n", 1)
    without = client.post("/execute", json={"code": _get(url)}).json()
    assert (without["verdict"], without["usage"]["network"]) == ("exception", None)


@pytest.mark.parametrize(
    ("network", "word"),
    [
        ("open", "more than the operator allows"),
        (["*"], "no host name"),
        (["http://a.b"], "URL"),
        ([""], "no host name"),
        ({"allow": ["a.b"], "more": 1}, "unknown name"),
        ({"deny": ["a.b"]}, "nothing is allowed that could be denied"),
        ({"allow": ["a.b"], "deny": ["0.0.0.0/0"]}, "every IPv4 address"),
        ({"allow": ["a.b"], "deny": [{"host": "a.b", "methods": ["GET"]}]}, "unknown name"),
        ("allow", "is no policy"),
        (5, "is no policy"),
    ],
)
def test_what_is_no_policy_is_refused_before_anything_runs(
    connected: Server, network: object, word: str
) -> None:
    client = connected.client()
    for path, more in (("/sandboxes", {}), ("/execute", {"code": "1"})):
        answer = client.post(path, json={"network": network, **more})
        assert answer.status_code == 400, answer.text
        assert word in json.dumps(error_of(answer)), answer.text


def test_a_policy_is_its_owners(connected: Server) -> None:
    place = f"/sandboxes/{new_sandbox(connected.client())}/network"
    stranger: httpx.Client = connected.client("bob-key-0123456789abcdef0123456789abcdef01")
    assert stranger.get(place).status_code == 404
    assert stranger.put(place, json={"mode": "none"}).status_code == 404
    assert stranger.get(f"{place}/log").status_code == 404


def test_the_audit_tells_of_each_connection(connected: Server, web: WebServer) -> None:
    client, admin = connected.client(), connected.client(ADMIN)
    made = client.post("/sandboxes", json={"network": [f"web.test:{web.port}"]}).json()["id"]
    run_cell(client, f"/sandboxes/{made}", _get(f"http://web.test:{web.port}/audited?token=x"))
    run_cell(client, f"/sandboxes/{made}", _get("http://elsewhere.test/"))
    client.put(f"/sandboxes/{made}/network", json={"mode": "none"})
    wanted = {"network.open", "network.close", "network.refused", "network.change"}
    deadline = time.monotonic() + 20
    while True:
        records = admin.get("/audit", params={"limit": 500}).json()["records"]
        mine = {r["action"]: r for r in records if made in r["object"]}
        if wanted <= set(mine):
            break
        assert time.monotonic() < deadline, sorted(mine)
        time.sleep(0.05)
    closed = mine["network.close"]
    assert closed["tenant"] == "alice"
    assert f"host:web.test:{web.port}" in closed["object"]
    details = json.loads(closed["details"])
    assert (details["requests"], details["address"]) == (["GET /audited"], OUTSIDE)
    assert "token" not in json.dumps(records)
    assert mine["network.refused"]["decision"] == "refused"


def test_the_sdk_has_the_librarys_names(connected: Server, web: WebServer) -> None:
    url = f"http://web.test:{web.port}/"
    client = cellwall.connect(connected.address, api_key=ALICE)
    with client.Sandbox(network=[f"web.test:{web.port}"]) as sandbox:
        assert str(sandbox.network) == f"allow web.test:{web.port}"
        done = sandbox.run(_get(url))
        assert done.stdout == "200\n"
        assert done.outcome.usage.network is not None
        assert done.outcome.usage.network.connections == 1
        assert sandbox.set_network("none").mode == "none"
        assert sandbox.network.mode == "none"
        assert sandbox.run(_get(url)).outcome.verdict == "exception"
        assert sandbox.network_usage().connections == 1
        assert sandbox.network_log()[0]["event"] == "open"
        with pytest.raises(UsageError, match="no host name"):
            sandbox.set_network(["*"])
    assert client.run(_get(url), network=[f"web.test:{web.port}"]).stdout == "200\n"


def test_the_command_line(names: NameServer, web: WebServer) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "CELLWALL_NETWORK_ADDRESSES": "127.0.1.0/24",
        "CELLWALL_NAME_SERVERS": names.address,
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [str(Path(sys.executable).with_name("cellwall")), "run", *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    code = _get(f"http://web.test:{web.port}/")
    allowed = run("--allow", f"web.test:{web.port}", "-c", code)
    assert (allowed.returncode, allowed.stdout) == (0, "200\n"), allowed.stderr
    assert run("-c", code).returncode == 1
    refused = run("--network", "open", "-c", code)
    assert refused.returncode == 125
    assert "CELLWALL_NETWORK=open" in refused.stderr
    denied = run("--allow", f"web.test:{web.port}", "--deny", "*.test", "-c", code)
    assert denied.returncode == 1
    alone = run("--deny", "web.test", "-c", code)
    assert alone.returncode == 125
    assert "--network open or --allow" in alone.stderr


def test_what_is_denied_is_refused_and_told(connected: Server, web: WebServer) -> None:
    """At the creation, changed, changed while it is paused, and of one program."""
    client, url = connected.client(), f"http://web.test:{web.port}/"
    allow = [f"web.test:{web.port}"]
    wanted = {"allow": allow, "deny": [{"host": "127.0.1.0/24"}, "a.test:25"]}
    made = client.post("/sandboxes", json={"network": wanted}).json()
    shown = [{"host": "127.0.1.0/24"}, {"host": "a.test", "ports": [25]}]
    assert made["network"]["deny"] == shown
    place = f"/sandboxes/{made['id']}"
    before = len(web.requests)
    assert run_cell(client, place, _get(url))["verdict"] == "exception"
    put = client.put(f"{place}/network", json={"allow": allow, "deny": []})
    assert "deny" not in put.json()["policy"]
    assert run_cell(client, place, _get(url))["stdout"] == "200\n"
    assert client.post(f"{place}/pause").status_code == 200
    put = client.put(f"{place}/network", json=wanted)
    assert (put.status_code, put.json()["policy"]["deny"]) == (200, shown)
    counted = put.json()["usage"]["refused"]
    assert client.post(f"{place}/resume").status_code == 200
    assert run_cell(client, place, _get(url))["verdict"] == "exception"
    assert client.get(f"{place}/network").json()["usage"]["refused"] > counted > 0
    told = [each["rule"] for each in client.get(f"{place}/network/log").json()["records"]]
    assert any(each.endswith("(deny 127.0.1.0/24)") for each in told)
    once = client.post("/execute", json={"code": _get(url), "network": wanted}).json()
    assert once["verdict"] == "exception"
    assert len(web.requests) == before + 1
    admin, deadline = connected.client(ADMIN), time.monotonic() + 20
    while True:
        found = admin.get("/audit", params={"limit": 500}).json()["records"]
        refused = [
            r for r in found if r["action"] == "network.refused" and made["id"] in r["object"]
        ]
        if any("(deny 127.0.1.0/24)" in json.dumps(each) for each in refused):
            break
        assert time.monotonic() < deadline, refused
        time.sleep(0.05)


def test_the_sdk_denies_as_the_library_does(connected: Server, web: WebServer) -> None:
    url = f"http://web.test:{web.port}/"
    policy = {"allow": ["*.of.test:80", f"web.test:{web.port}"], "deny": ["web.test"]}
    client = cellwall.connect(connected.address, api_key=ALICE)
    with client.Sandbox(network=policy) as sandbox:
        words = f"allow *.of.test:80, web.test:{web.port} but not web.test"
        assert str(sandbox.network) == words
        assert sandbox.run(_get(url)).outcome.verdict == "exception"
        assert str(sandbox.set_network(policy["allow"])) == words.partition(" but")[0]
        assert sandbox.run(_get(url)).stdout == "200\n"
        with pytest.raises(UsageError, match="nothing is allowed that could be denied"):
            sandbox.set_network({"deny": ["web.test"]})
    assert client.run(_get(url), network=policy).outcome.verdict == "exception"
