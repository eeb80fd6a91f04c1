"""Keys and secrets over two gateways and two nodes: one API, whichever of them is asked."""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cellwall.apps.cli.commands import app_of
from cellwall.apps.cluster import directory_keys
from cellwall.model.errors import NotFound
from cellwall.model.ids import new_id, node_of
from cellwall.store.records.errors import StoreBroken
from kit.cluster.directories import directory, name_of, stop
from kit.cluster.processes import Cluster, cluster
from kit.outside.name_server import NameServer
from kit.outside.servers import OUTSIDE, WebServer
from kit.outside.world import certificate
from kit.postgres_server import Postgres, another
from kit.servers import ADMIN, ALICE, MANAGER, error_of, run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

VALUE = "sk-proj-valueThatOneNodeHasInMemory4711"
KNOWN_WITHIN_S = 2.0
_ASK = """
import os, urllib.request
request = urllib.request.Request({url!r}, headers={{"X-Key": os.environ["API_KEY"]}})
print(urllib.request.urlopen(request, timeout=10).status, os.environ["API_KEY"])
"""


@dataclass
class World:
    """Two nodes behind two gateways, their directory, and a server outside."""

    made: Cluster
    postgres: Postgres
    web: WebServer

    @property
    def host(self) -> str:
        return f"web.test:{self.web.port}"

    def rules(self) -> dict[str, object]:
        return {"network": [self.host], "secrets": ["API_KEY"]}

    def code(self, path: str) -> str:
        return _ASK.format(url=f"https://{self.host}/{path}")

    def sent(self) -> list[str]:
        """Return the keys that the server outside was sent."""
        return [each[2]["X-Key"] for each in self.web.requests]

    def put(self, gateway: int, value: str) -> httpx.Response:
        body = {"value": value, "hosts": [self.host]}
        return self.made.client(gateway, MANAGER).put("/secrets/API_KEY", json=body)


@pytest.fixture(scope="module")
def own(postgres: Postgres) -> Iterator[Postgres]:
    """A server that a test may stop; the capability was asked for by `postgres`."""
    with another() as made:
        yield made


def _key_file(folder: Path) -> Path:
    """Make the key under which gateways seal secrets."""
    made = folder / "secrets.key"
    made.write_text(secrets.token_hex(32))
    made.chmod(0o600)
    return made


@pytest.fixture(scope="module")
def world(own: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tenants")
    with (
        WebServer(certificate(folder, "web.test")) as web,
        NameServer({"web.test": [OUTSIDE]}) as names,
    ):
        engine = (
            "[engine]\nnetwork_addresses = ['127.0.1.0/24']\n"
            f"name_servers = ['{names.address}']\n"
            f"network_authorities = '{folder}/certificate.pem'\n"
        )
        shared = {"secrets_key_file": str(_key_file(folder))}
        with cluster(2, 2, directory=directory(own), tiers=engine, at_gateway=shared) as made:
            yield World(made, own, web)


def _made(world: World, gateway: int = 0, **body: object) -> dict[str, Any]:
    answer = world.made.client(gateway, ADMIN).post("/keys", json={"tenant": "moss", **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def _status(world: World, gateway: int, key: str) -> int:
    """Return how a gateway answers a key; 0: the request was cut, as its key ended meanwhile."""
    try:
        status = world.made.client(gateway, key).get("/sandboxes").status_code
    except httpx.RemoteProtocolError:
        return 0
    return 401 if status == 429 else status  # after many refused keys of one address


def _within(world: World, gateway: int, key: str, status: int) -> None:
    """Wait until a gateway answers a key so, for as long as the promise says."""
    until = time.monotonic() + KNOWN_WITHIN_S
    while _status(world, gateway, key) != status:
        assert time.monotonic() < until, f"gateway {gateway} does not know it"


# -- keys --------------------------------------------------------------------------------------


def test_key_made_at_one_gateway_works_at_the_other_and_ends_at_both(world: World) -> None:
    made = _made(world, 0, scope="manage", name="ci")
    key = made["key"]
    assert _status(world, 0, key) == 200  # at once, where it was made
    _within(world, 1, key, 200)
    admin = world.made.client(1, ADMIN)
    shown = {each["id"]: each for each in admin.get("/keys").json()["keys"]}
    assert shown[made["id"]] == {name: value for name, value in made.items() if name != "key"}
    assert {each["source"] for each in shown.values()} == {"store", "configuration"}
    ended = admin.delete(f"/keys/{made['id']}")
    assert (ended.status_code, ended.json()["message"]) == (200, "revoked")
    assert _status(world, 1, key) == 401
    _within(world, 0, key, 401)
    again = admin.delete(f"/keys/{made['id']}")
    assert (again.status_code, again.json()["message"]) == (200, "it had been revoked")
    dump = "SELECT string_agg(k::text, ' ') FROM directory.keys AS k"
    text = world.postgres.sql(dump, name_of(world.made.directory))
    assert made["id"] in text
    assert key not in text


def test_the_command_line_makes_and_ends_keys_of_the_directory(world: World) -> None:
    url = world.made.directory

    def keys(*words: str) -> str:
        result = CliRunner().invoke(app_of(["keys"]), ["keys", *words, "--directory", url])
        assert result.exception is None, result.exception
        return result.stdout

    key = keys("create", "--tenant", "fern", "--scope", "manage", "--expires", "1h").strip()
    for gateway in (0, 1):
        _within(world, gateway, key, 200)
    shown = next(each for each in json.loads(keys("ls", "--json")) if each["tenant"] == "fern")
    assert (shown["scope"], shown["state"]) == ("manage", "accepted")
    assert keys("revoke", shown["id"]) == f"{shown['id']} revoked\n"
    for gateway in (0, 1):
        _within(world, gateway, key, 401)
    assert keys("revoke", shown["id"]) == f"{shown['id']} had been revoked\n"
    with pytest.raises(NotFound):
        directory_keys.revoke(url, "0" * 12)
    with pytest.raises(StoreBroken, match="does not exist"):
        directory_keys.rows(url.replace("/test", "/nowhere"))


def test_keys_are_refused_as_a_server_refuses_them(world: World) -> None:
    admin = world.made.client(0, ADMIN)
    for key in (ALICE, MANAGER):
        client = world.made.client(0, key)
        for answer in (client.get("/keys"), client.post("/keys", json={"tenant": "x"})):
            assert error_of(answer)["code"] == "forbidden"
    fixed = next(
        each for each in admin.get("/keys").json()["keys"] if each["source"] == "configuration"
    )
    refusals = (
        (admin.delete(f"/keys/{fixed['id']}"), 409),
        (admin.delete("/keys/000000000000"), 404),
        (admin.delete("/keys/%00"), 404),
        (admin.post("/keys", json={"tenant": "x", "scope": "root"}), 400),
        (admin.post("/keys", json={"tenant": "x", "more": 1}), 400),
        (admin.post("/keys", content=b"{", headers={"content-type": "application/json"}), 400),
        (admin.post("/keys", content=b"x" * 200_000), 413),
        (admin.put("/keys", json={}), 405),
    )
    for answer, status in refusals:
        assert answer.status_code == status, answer.text


def test_streams_of_a_revoked_key_are_cut_at_both_gateways(world: World) -> None:
    made, other = _made(world), _made(world)
    for each in (made, other):
        _within(world, 1, each["key"], 200)
    ends: dict[str, float] = {}
    code = "import time\nfor _ in range(60):\n    print(1, flush=True)\n    time.sleep(0.25)"

    def follow(name: str, gateway: int, key: str, begun: threading.Event) -> None:
        body = {"code": code, "limits": {"wall_s": 30}}
        headers = {"accept": "application/x-ndjson"}
        client = world.made.client(gateway, key)
        try:
            with client.stream("POST", "/execute", json=body, headers=headers) as answer:
                for line in answer.iter_lines():
                    if "stdout" in line:
                        begun.set()
        except httpx.HTTPError:
            ends[name] = time.monotonic()

    readers, begins = [], []
    for name, gateway, key in (
        ("here", 0, made["key"]),
        ("there", 1, made["key"]),
        ("other", 1, other["key"]),
    ):
        begun = threading.Event()
        reader = threading.Thread(target=follow, args=(name, gateway, key, begun))
        reader.start()
        readers.append(reader)
        begins.append(begun)
    assert all(begun.wait(30) for begun in begins)
    revoked_s = time.monotonic()
    assert world.made.client(0, ADMIN).delete(f"/keys/{made['id']}").status_code == 200
    for reader in readers[:2]:
        reader.join(10)
    assert {name: at - revoked_s < KNOWN_WITHIN_S for name, at in ends.items()} == {
        "here": True,
        "there": True,
    }
    # The control: the stream of another key goes on, until that one ends, too.
    assert readers[2].is_alive()
    assert world.made.client(1, ADMIN).delete(f"/keys/{other['id']}").status_code == 200
    readers[2].join(10)
    assert not readers[2].is_alive()


def test_known_keys_go_on_while_the_directory_is_away(world: World) -> None:
    made = _made(world)
    _within(world, 1, made["key"], 200)
    stop(world.postgres, signal.SIGSTOP)
    try:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for gateway in (0, 1):
                client = world.made.client(gateway, made["key"])
                answer = client.post("/execute", json={"code": "print(6 * 7)"})
                assert answer.json()["stdout"] == "42\n", answer.text
        admin = world.made.client(0, ADMIN)
        for answer in (
            admin.post("/keys", json={"tenant": "moss"}),
            admin.delete(f"/keys/{made['id']}"),
            world.put(0, VALUE),
        ):
            assert (answer.status_code, error_of(answer)["code"]) == (503, "store_busy")
    finally:
        stop(world.postgres, signal.SIGCONT)
    wait_until(
        lambda: admin.delete(f"/keys/{made['id']}").status_code == 200, "changes are taken again"
    )
    for gateway in (0, 1):
        _within(world, gateway, made["key"], 401)


def test_gateway_that_starts_knows_keys_with_its_first_answer(world: World) -> None:
    made = _made(world, 0)
    world.made.restart_gateway(1)
    assert _status(world, 1, made["key"]) == 200
    assert _status(world, 1, "x" * 43) == 401
    world.made.wait_ready(2, 1)


# -- secrets -----------------------------------------------------------------------------------


def test_secret_is_used_on_both_nodes_and_lies_on_neither(world: World) -> None:
    first = world.put(0, VALUE)
    assert first.status_code == 200, first.text
    manager = world.made.client(1, MANAGER)
    assert manager.get("/secrets").json()["secrets"] == [first.json()]
    nodes: set[str] = set()
    while len(nodes) < 2:  # a sandbox on each
        answer = manager.post("/sandboxes", json=world.rules())
        assert answer.status_code == 201, answer.text
        place = f"/sandboxes/{answer.json()['id']}"
        done = run_cell(manager, place, world.code("in-a-sandbox"))
        assert done["stdout"].startswith("200 sk-proj-"), done
        assert VALUE not in done["stdout"]
        nodes.add(node_of(answer.json()["id"]))
        manager.delete(place)
    program = {"code": world.code("alone"), **world.rules()}
    keyed = {"idempotency-key": new_id()}
    alone = manager.post("/execute", json=program, headers=keyed)
    assert alone.json()["stdout"].startswith("200 sk-proj-"), alone.text
    replay = world.made.client(0, MANAGER).post("/execute", json=program, headers=keyed)
    assert replay.json()["stdout"] == alone.json()["stdout"]
    many = manager.post("/executions/batch", json={"executions": [program] * 4})
    lines = [line for line in many.text.splitlines() if '"stdout"' in line]
    assert len(lines) == 4, many.text
    assert all("200 sk-proj-" in line for line in lines)
    waits = manager.post("/execute", json={**program, "background": True}).json()
    later = manager.get(f"/executions/{waits['execution_id']}", params={"wait": 30}).json()
    assert later["stdout"].startswith("200 sk-proj-"), later
    assert set(world.sent()) == {VALUE}
    _lies_nowhere(world)


def _lies_nowhere(world: World) -> None:
    """Search files of nodes, gateways and PostgreSQL; the control is the name of the host."""
    places = [world.made.folder, world.postgres.folder]
    files = [each for place in places for each in place.rglob("*") if each.is_file()]
    found: dict[str, list[Path]] = {VALUE: [], world.host: []}
    for each in files:
        if "templates" in each.parts:
            continue
        data = each.read_bytes()
        for text, where in found.items():
            if text.encode() in data:
                where.append(each)
    assert found[VALUE] == []
    for place in places:  # what is no secret is found in both by the same search
        assert any(place in each.parents for each in found[world.host]), place


def test_change_and_end_of_a_secret_hold_from_the_next_sandbox_on(world: World) -> None:
    manager = world.made.client(0, MANAGER)
    world.put(0, VALUE)
    session = f"/sandboxes/{manager.post('/sandboxes', json=world.rules()).json()['id']}"
    assert world.put(1, f"{VALUE}-changed").status_code == 200
    assert manager.post("/execute", json={"code": world.code("new"), **world.rules()}).is_success
    assert run_cell(manager, session, world.code("old"))["stdout"].startswith("200 ")
    assert world.sent()[-2:] == [f"{VALUE}-changed", VALUE]
    assert world.made.client(1, MANAGER).delete("/secrets/API_KEY").status_code == 200
    for path, body in (("/sandboxes", {}), ("/execute", {"code": "1"})):
        for _ in range(4):  # at either node
            refused = manager.post(path, json={**body, **world.rules()})
            assert (refused.status_code, error_of(refused)["code"]) == (404, "not_found")
    assert run_cell(manager, session, world.code("old"))["stdout"].startswith("200 ")
    manager.delete(session)
    # A refused key is free: its program runs once the secret is there.
    keyed, program = {"idempotency-key": new_id()}, {"code": "print(1)", **world.rules()}
    assert manager.post("/execute", json=program, headers=keyed).status_code == 404
    world.put(1, VALUE)
    assert manager.post("/execute", json=program, headers=keyed).json()["stdout"] == "1\n"


def test_secret_is_its_tenants_own(world: World) -> None:
    world.put(0, VALUE)
    alice = world.made.client(1, ALICE)
    assert error_of(alice.post("/sandboxes", json=world.rules()))["code"] == "not_found"
    for answer in (alice.get("/secrets"), alice.delete("/secrets/API_KEY")):
        assert error_of(answer)["code"] == "forbidden"
    manager = world.made.client(1, MANAGER)
    for body in (
        {"value": f"{VALUE}\n", "hosts": ["a.test"]},
        {"value": VALUE, "hosts": ["*.a.test"]},
        {"value": VALUE},
        {"value": [VALUE], "hosts": ["a.test"]},
    ):
        refused = manager.put("/secrets/BAD", json=body)
        assert refused.status_code == 400
        assert VALUE not in refused.text


def test_program_that_waits_over_a_nodes_restart_has_its_secret_afterwards(
    own: Postgres, tmp_path: Path
) -> None:
    one = "[tiers.one]\nrunning = 1\n[tenants]\nmanager = 'one'\n"
    shared = {"secrets_key_file": str(_key_file(tmp_path))}
    with cluster(1, 1, directory=directory(own), tiers=one, at_gateway=shared) as made:
        manager = made.client(key=MANAGER)
        body = {"value": VALUE, "hosts": ["a.test"]}
        assert manager.put("/secrets/KEY", json=body).is_success
        rules = {"network": ["a.test"], "secrets": ["KEY"]}
        asked = (
            {"code": "import time; time.sleep(60)", "limits": {"wall_s": 90}},
            {"code": "print(1)", **rules},
            {"code": "print(2)"},
        )
        ids = []
        for each in asked:
            answer = manager.post("/execute", json={**each, "background": True})
            assert answer.status_code == 202, answer.text
            ids.append(f"/executions/{answer.json()['execution_id']}")
        wait_until(lambda: manager.get(ids[0]).json()["status"] == "running", "it runs")
        made.nodes["node-0"].kill()
        made.start_node("node-0")
        made.wait_ready(1)
        first, secret, other = [manager.get(each, params={"wait": 30}).json() for each in ids]
        assert first["verdict"] == "interrupted", first
        assert (secret["stdout"], other["stdout"]) == ("1\n", "2\n"), secret


def test_gateway_without_a_directory_says_what_it_needs() -> None:
    with cluster(1, 1) as made:
        admin, manager = made.client(key=ADMIN), made.client(key=MANAGER)
        assert {each["source"] for each in admin.get("/keys").json()["keys"]} == {"configuration"}
        rules = {"network": ["a.test"], "secrets": ["KEY"]}
        for answer in (
            admin.post("/keys", json={"tenant": "x"}),
            admin.delete("/keys/000000000000"),
            manager.get("/secrets"),
            manager.put("/secrets/KEY", json={"value": VALUE, "hosts": ["a.test"]}),
            manager.post("/sandboxes", json=rules),
            manager.post("/execute", json={"code": "1", **rules}),
        ):
            assert (answer.status_code, error_of(answer)["code"]) == (409, "conflict"), answer.text
            assert "directory" in error_of(answer)["remedy"]


# -- audit -------------------------------------------------------------------------------------


def test_gateways_audit_has_changes_before_they_are_made_and_no_value(own: Postgres) -> None:
    with cluster(1, 0, directory=directory(own)) as made:
        key = _key_file(made.folder)
        url = f"sqlite:///{made.folder / 'gateway.db'}"
        made.start_gateway(audit=url, secrets_key_file=str(key))
        made.wait_ready(1)
        admin, manager = made.client(key=ADMIN), made.client(key=MANAGER)
        new = admin.post("/keys", json={"tenant": "moss", "name": "ci"}).json()
        body = {"value": VALUE, "hosts": ["a.test"]}
        assert manager.put("/secrets/KEY", json=body).is_success
        assert manager.delete("/secrets/KEY").is_success
        assert admin.delete(f"/keys/{new['id']}").is_success
        assert error_of(manager.get("/audit"))["code"] == "forbidden"
        page = admin.get("/audit", params={"limit": 1000})
        found = [each for each in page.json()["records"] if each["action"][:3] in {"key", "sec"}]
        assert [(each["action"], each["object"], each["tenant"]) for each in found] == [
            ("key.create", f"key:{new['id']}", "admin"),
            ("secret.set", "secret:KEY", "manager"),
            ("secret.remove", "secret:KEY", "manager"),
            ("key.revoke", f"key:{new['id']}", "admin"),
        ]
        assert "moss" in page.text
        assert VALUE not in page.text
        assert new["key"] not in page.text
        first = admin.get("/audit", params={"limit": 1}).json()
        rest = admin.get("/audit", params={"after": first["next"], "limit": 1000}).json()
        assert (
            first["records"] + rest["records"][: len(page.json()["records"]) - 1]
            == (page.json()["records"])
        )
        for query in ("limit=0", "limit=1001", "after=x", "more=1", "limit=1&limit=2"):
            assert admin.get(f"/audit?{query}").status_code == 400
