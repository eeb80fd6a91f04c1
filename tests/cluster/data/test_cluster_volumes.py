"""Volumes over two nodes and two gateways: one name is one volume, and work goes where it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import cellwall
from cellwall.model.errors import Conflict, NodeLost
from cellwall.model.ids import new_id, node_of
from conftest import Require
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster
from kit.postgres_server import Postgres
from kit.servers import ALICE, BOB, error_of
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

FENCE_S = 6.0
ROOM: dict[str, Any] = {"volumes_mb": 64}
ROUNDS = 20


@pytest.fixture(scope="module")
def needs(require: Require) -> None:
    require("mkfs.ext4", shutil.which("mkfs.ext4") is not None, "run: apt-get install e2fsprogs")


@pytest.fixture(scope="module")
def alone(needs: None) -> Iterator[Cluster]:
    """Two nodes behind one gateway without a directory."""
    with cluster(2, at_node=ROOM) as made:
        yield made


@pytest.fixture(scope="module")
def two(needs: None, postgres: Postgres) -> Iterator[Cluster]:
    """Two nodes behind two gateways."""
    with cluster(2, 2, directory=directory(postgres), at_node=ROOM) as made:
        yield made


def _made(client: httpx.Client, name: str, size_mb: int = 8) -> None:
    answer = client.post("/volumes", json={"name": name, "size_mb": size_mb})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/volumes/{name}"


def _runs(client: httpx.Client, code: str, **volumes: str) -> httpx.Response:
    return client.post("/execute", json={"code": code, "volumes": volumes})


def _node(client: httpx.Client, name: str) -> str:
    """Return the node that has a volume, as the id of a program that names it says."""
    answer = _runs(client, "1", **{name: "/data:ro"})
    assert answer.status_code == 200, answer.text
    return node_of(answer.headers["x-execution-id"])


def _on_both(client: httpx.Client) -> tuple[str, str]:
    """Return names of two volumes that lie on two nodes."""
    first = f"v{new_id()}"
    _made(client, first, 1)
    at = _node(client, first)
    for _ in range(40):
        name = f"v{new_id()}"
        _made(client, name, 1)
        if _node(client, name) != at:
            return first, name
        client.delete(f"/volumes/{name}")
    raise AssertionError("one node has all volumes")


def test_what_one_gateway_has_written_another_reads(two: Cluster) -> None:
    one, other = two.client(0), two.client(1)
    for number in range(4):
        name = f"kept{number}"
        _made(one, name)
        code = f"open('/data/file', 'w').write('{number}')"
        assert _runs(one, code, **{name: "/data"}).json()["verdict"] == "ok"
        read = _runs(other, "print(open('/data/file').read())", **{name: "/data:ro"})
        assert read.json()["stdout"] == f"{number}\n"
        box = other.post("/sandboxes", json={"volumes": {name: "/data"}})
        assert box.status_code == 201, box.text
        assert node_of(box.json()["id"]) == node_of(read.headers["x-execution-id"])
        busy = one.delete(f"/volumes/{name}")
        assert (busy.status_code, error_of(busy)["code"]) == (409, "conflict")
        assert other.delete(f"/sandboxes/{box.json()['id']}").status_code == 200
        assert other.get(f"/volumes/{name}").json()["size_mb"] == 8
        assert other.delete(f"/volumes/{name}").status_code == 200
        gone = one.get(f"/volumes/{name}")
        assert (gone.status_code, error_of(gone)["code"]) == (404, "not_found")


def test_same_name_at_both_gateways_at_once_makes_one(two: Cluster) -> None:
    clients = [two.client(0), two.client(1)] * 2
    for number in range(ROUNDS):
        body = {"name": f"same{number}", "size_mb": 1}
        with ThreadPoolExecutor(len(clients)) as pool:
            asked = [pool.submit(client.post, "/volumes", json=body) for client in clients]
            answers = [each.result() for each in asked]
        statuses = sorted(each.status_code for each in answers)
        assert statuses == [201, 409, 409, 409], [each.text for each in answers]
        named = [each["name"] for each in clients[0].get("/volumes").json()["volumes"]]
        assert named == [f"same{number}"]
        assert clients[1].delete(f"/volumes/same{number}").status_code == 200
    # The control: other tenants and other names are others.
    _made(clients[0], "mine", 1)
    _made(two.client(1, BOB), "mine", 1)
    _made(clients[1], "yours", 1)
    assert two.client(0, BOB).get("/volumes").json()["volumes"][0]["name"] == "mine"
    for client, name in ((clients[0], "mine"), (clients[1], "yours"), (two.client(0, BOB), "mine")):
        assert client.delete(f"/volumes/{name}").status_code == 200


def test_gateway_without_a_directory_makes_one_and_finds_it_after_its_restart(
    alone: Cluster,
) -> None:
    client = alone.client()
    for number in range(ROUNDS):
        body = {"name": f"same{number}", "size_mb": 1}
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(client.post, "/volumes", json=body) for _ in range(4)]
            statuses = sorted(each.result().status_code for each in asked)
        assert statuses == [201, 409, 409, 409]
    alone.restart_gateway(0)
    alone.wait_ready(2)
    client = alone.client()
    listed = client.get("/volumes").json()
    assert [each["name"] for each in listed["volumes"]] == sorted(f"same{n}" for n in range(ROUNDS))
    assert "incomplete" not in listed
    again = client.post("/volumes", json={"name": "same0", "size_mb": 1})
    assert (again.status_code, error_of(again)["code"]) == (409, "conflict")
    for number in range(ROUNDS):
        assert _node(client, f"same{number}") in alone.states()
        assert client.delete(f"/volumes/same{number}").status_code == 200
    assert client.get("/volumes").json() == {"volumes": []}


def test_copy_lies_beside_its_source_and_two_of_two_nodes_are_refused(alone: Cluster) -> None:
    client = alone.client()
    first, second = _on_both(client)
    for place, more in (("/execute", {"code": "print(1)"}), ("/sandboxes", {})):
        volumes = {first: "/data", second: "/more"}
        refused = client.post(place, json={**more, "volumes": volumes})
        assert (refused.status_code, error_of(refused)["code"]) == (409, "conflict"), refused.text
        assert "different nodes" in error_of(refused)["message"]
        assert "copy" in error_of(refused)["remedy"]
    copied = client.post(f"/volumes/{first}/copy", json={"name": "beside"})
    assert copied.status_code == 201, copied.text
    both = client.post("/execute", json={"code": "1", "volumes": {first: "/a", "beside": "/b"}})
    assert both.json()["verdict"] == "ok", both.text
    taken = client.post(f"/volumes/{first}/copy", json={"name": second})
    assert (taken.status_code, error_of(taken)["code"]) == (409, "conflict")
    for name in (first, second, "beside"):
        assert client.delete(f"/volumes/{name}").status_code == 200


def test_room_is_each_nodes_and_a_full_one_is_passed_over(alone: Cluster) -> None:
    client = alone.client()
    for name in ("first", "second"):
        _made(client, name, 60)
    assert len({_node(client, name) for name in ("first", "second")}) == 2
    for _ in range(4):
        over = client.post("/volumes", json={"name": "third", "size_mb": 8})
        assert (over.status_code, error_of(over)["quota"]) == (429, "volumes_mb")
    assert client.delete("/volumes/first").status_code == 200
    _made(client, "third", 8)
    for name in ("second", "third"):
        assert client.delete(f"/volumes/{name}").status_code == 200


def test_absent_volume_is_not_found_and_another_tenants_is_absent(alone: Cluster) -> None:
    client, bob = alone.client(), alone.client(key=BOB)
    _made(client, "mine")
    asked = {"volumes": {"mine": "/data"}}
    for answer in (
        bob.get("/volumes/mine"),
        bob.delete("/volumes/mine"),
        bob.post("/volumes/mine/copy", json={"name": "taken"}),
        bob.post("/sandboxes", json=asked),
        bob.post("/execute", json={"code": "print(1)", **asked}),
    ):
        assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found"), answer.text
        assert not any("lacks" in name for name in answer.headers)
    assert client.delete("/volumes/mine").status_code == 200


def test_batch_and_background_and_keys_go_to_the_volume(alone: Cluster) -> None:
    client = alone.client()
    names = _on_both(client)
    for name in names:
        _runs(client, f"open('/data/who', 'w').write('{name}')", **{name: "/data"})
    code = "print(open('/data/who').read())"
    programs = [{"code": code, "volumes": {name: "/data:ro"}} for name in names * 3]
    lines = client.post("/executions/batch", json={"executions": programs}).text.splitlines()
    assert sum(line.count(names[0]) for line in lines) >= 3
    assert '"failed":0' in lines[-1], lines
    for name in names:
        key = {"idempotency-key": new_id()}
        random = f"{code}; import os; print(os.urandom(8).hex())"
        body = {"code": random, "volumes": {name: "/data:ro"}}
        first, again = (client.post("/execute", json=body, headers=key) for _ in range(2))
        assert first.json()["stdout"] == again.json()["stdout"], first.text
        assert first.json()["stdout"].startswith(name)
        later = {"code": code, "volumes": {name: "/data:ro"}, "background": True}
        begun = client.post("/execute", json=later)
        assert begun.status_code == 202, begun.text
        place = f"/executions/{begun.json()['execution_id']}?wait=20"
        assert client.get(place).json()["stdout"] == f"{name}\n"
        assert client.delete(f"/volumes/{name}").status_code == 200


def test_body_that_is_too_long_to_be_sent_twice_is_refused(alone: Cluster) -> None:
    client = alone.client()
    names = _on_both(client)
    files = {"a.txt": "x" * (9 << 20)}
    answers = [
        client.post("/execute", json={"code": "1", "volumes": {name: "/d"}, "files": files})
        for name in names * 4
    ]
    assert {each.status_code for each in answers} <= {200, 413}
    refused = next(each for each in answers if each.status_code == 413)
    assert "another node" in error_of(refused)["message"]
    for name in names:
        assert client.delete(f"/volumes/{name}").status_code == 200


def test_sdk_works_by_the_gateways_address_alone(two: Cluster) -> None:
    addresses = [f"http://127.0.0.1:{each.port}" for each in two.gateways]
    first, second = (cellwall.connect(each, ALICE) for each in addresses)
    with first as one, second as other:
        assert one.volumes.create("data", 8)["size_mb"] == 8
        with other.Sandbox(volumes={"data": "/data"}) as sandbox:
            sandbox.files.write("/data/one", "1")
            with pytest.raises(Conflict):
                one.Sandbox(volumes={"data": "/data"})
        assert one.run("print(open('/data/one').read())", volumes={"data": "/data:ro"}).ok
        other.volumes.copy("data", "copy")
        assert [each["name"] for each in one.volumes.list()] == ["copy", "data"]
        for name in ("data", "copy"):
            one.volumes.remove(name)


@pytest.mark.parametrize("gateways", [1, 2])
def test_volume_of_a_killed_node_is_lost_and_its_name_is_free_once_it_is_removed(
    needs: None, postgres: Postgres, gateways: int
) -> None:
    url = directory(postgres) if gateways > 1 else ""
    with cluster(2, gateways, directory=url, fence_s=FENCE_S, at_node=ROOM) as made:
        client = made.client(gateways - 1)
        kept, gone = _on_both(client)
        name = _node(client, gone)
        node = next(each for each in made.nodes if made.name_of(each) == name)
        made.nodes[node].kill()
        wait_until(lambda: made.states().get(name) == "unreachable", "it is out of reach")
        away = client.get(f"/volumes/{gone}")
        assert (away.status_code, error_of(away)["code"]) == (503, "node_unreachable")
        listed = client.get("/volumes").json()
        assert [each["name"] for each in listed["volumes"]] == [kept]
        assert listed["incomplete"] == [name]
        again = client.post("/volumes", json={"name": gone, "size_mb": 1})
        assert (again.status_code, error_of(again)["code"]) == (503, "node_unreachable")
        wait_until(lambda: made.states().get(name) == "lost", "its loss")
        wait_until(lambda: made.states(gateways - 1).get(name) == "lost", "its loss at both")
        for answer in (
            client.get(f"/volumes/{gone}"),
            client.post("/volumes", json={"name": gone, "size_mb": 1}),
            _runs(client, "print(1)", **{gone: "/data"}),
            client.post("/sandboxes", json={"volumes": {gone: "/data"}}),
        ):
            assert (answer.status_code, error_of(answer)["code"]) == (410, "node_lost"), answer.text
        assert client.get("/volumes").json()["lost"] == [gone]
        address = f"http://127.0.0.1:{made.gateways[gateways - 1].port}"
        with cellwall.connect(address, ALICE) as sdk, pytest.raises(NodeLost, match="is lost"):
            sdk.run("1", volumes={gone: "/data"})
        assert _runs(client, "print(1)", **{kept: "/data"}).json()["verdict"] == "ok"
        # Its machine comes back, with its disk, under another name.
        made.start_node(node, FENCE_S, **ROOM)
        made.wait_ready(2, gateways - 1)
        assert client.get(f"/volumes/{gone}").status_code == 200
        assert _runs(client, "print(1)", **{gone: "/data"}).json()["verdict"] == "ok"
        new = _node(client, gone)
        assert new == made.name_of(node) != name
        made.nodes[node].kill()
        wait_until(lambda: made.states(gateways - 1).get(new) == "lost", "its loss")
        assert client.get(f"/volumes/{gone}").status_code == 410
        assert client.delete(f"/volumes/{gone}").status_code == 200
        assert client.get(f"/volumes/{gone}").status_code == 404
        _made(client, gone)
