"""A gateway over two nodes: the API of one box, and the node in every id."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import cellwall
from cellwall.model.ids import node_of
from kit.cluster.processes import Cluster, cluster
from kit.servers import ADMIN, ALICE, BOB, run_cell

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


@pytest.fixture
def alice(two: Cluster) -> httpx.Client:
    return two.client()


def test_program_runs_on_some_node(alice: httpx.Client) -> None:
    answer = alice.post("/execute", json={"code": "print(6 * 7)"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["stdout"] == "42\n"


def test_gateway_is_there_and_shows_its_nodes(two: Cluster, alice: httpx.Client) -> None:
    assert alice.get("/health").json()["status"] == "ok"
    states = two.states()
    assert set(states.values()) == {"ready"}
    assert all(len(name) == 4 for name in states)


def test_session_lives_on_the_node_that_its_id_names(two: Cluster, alice: httpx.Client) -> None:
    names = set(two.states())
    made = [alice.post("/sandboxes", json={}).json()["id"] for _ in range(6)]
    assert {node_of(each) for each in made} <= names
    for number, each in enumerate(made):
        path = f"/sandboxes/{each}"
        run_cell(alice, path, f"x = {number}")
        said = run_cell(alice, path, "print(x)")
        assert said["stdout"] == f"{number}\n"
        assert node_of(said["execution_id"]) == node_of(each)
    listed = alice.get("/sandboxes").json()
    assert {each["id"] for each in listed["sandboxes"]} == set(made)
    assert "incomplete" not in listed
    for each in made:
        assert alice.delete(f"/sandboxes/{each}").status_code == 200


def test_list_over_nodes_comes_in_pages(alice: httpx.Client) -> None:
    made = [alice.post("/sandboxes", json={}).json()["id"] for _ in range(5)]
    found, after = [], None
    while True:
        query = {"limit": "2", "state": "running"} | ({} if after is None else {"after": after})
        answer = alice.get("/sandboxes", params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [each["id"] for each in page["sandboxes"]]
        after = page["next"]
        if after is None:
            break
    assert found == made[::-1]
    for each in made:
        alice.delete(f"/sandboxes/{each}")


def test_another_tenant_finds_nothing(two: Cluster, alice: httpx.Client) -> None:
    made = alice.post("/sandboxes", json={}).json()["id"]
    bob = two.client(key=BOB)
    assert bob.get(f"/sandboxes/{made}").status_code == 404
    assert bob.get("/sandboxes").json()["sandboxes"] == []
    # What a client says under the gateway's names is not heard.
    said = {"cellwall-tenant": "alice", "cellwall-scope": "admin", "cellwall-key-id": "x"}
    assert bob.get(f"/sandboxes/{made}", headers=said).status_code == 404
    assert alice.get(f"/sandboxes/{made}").status_code == 200
    alice.delete(f"/sandboxes/{made}")


@pytest.mark.parametrize("key", [None, "cw_" + "x" * 43])
def test_caller_without_a_key_is_refused(two: Cluster, key: str | None) -> None:
    answer = two.client(key=key).post("/execute", json={"code": "1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")


def test_id_of_no_node_is_not_found(alice: httpx.Client) -> None:
    for name in ("a" * 30, "a" * 26, "x"):
        answer = alice.get(f"/sandboxes/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]


def test_request_id_is_one_all_the_way(alice: httpx.Client) -> None:
    answer = alice.post("/execute", json={"code": "1"}, headers={"x-request-id": "mine-1"})
    assert answer.headers.get_list("x-request-id") == ["mine-1"]


def test_events_stream_through(alice: httpx.Client) -> None:
    body = {"code": "import time\nfor n in range(3): print(n, flush=True); time.sleep(0.05)"}
    for accept, end in (("application/x-ndjson", '"type":"end"'), ("text/event-stream", "end")):
        with alice.stream("POST", "/execute", json=body, headers={"accept": accept}) as answer:
            assert answer.headers["content-type"].startswith(accept)
            text = "".join(answer.iter_text())
        assert all(f"{n}" in text for n in range(3))
        assert end in text


def test_files_go_and_come_whole(alice: httpx.Client) -> None:
    made = f"/sandboxes/{alice.post('/sandboxes', json={}).json()['id']}"
    data = bytes(range(256)) * 4096 * 12
    put = alice.put(f"{made}/files", params={"path": "a.bin"}, content=data)
    assert put.status_code < 300, put.text
    # In chunks, and more of them than a gateway keeps for another node.
    pieces = (data[at : at + 100_000] for at in range(0, len(data), 100_000))
    put = alice.put(f"{made}/files", params={"path": "b.bin"}, content=pieces)
    assert put.status_code < 300, put.text
    for name in ("a.bin", "b.bin"):
        assert alice.get(f"{made}/files", params={"path": name}).content == data
    alice.delete(made)


def test_states_of_nodes_are_the_operators(two: Cluster, alice: httpx.Client) -> None:
    assert alice.get("/nodes").status_code == 403
    assert len(two.client(key=ADMIN).get("/nodes").json()["nodes"]) == 2


def test_numbers_are_those_of_all_nodes_together(two: Cluster, alice: httpx.Client) -> None:
    made = [alice.post("/sandboxes", json={}).json()["id"] for _ in range(4)]
    assert alice.get("/stats").json()["sandboxes"] == 4
    assert alice.get("/quota").json()["use"]["sandboxes"] == 4
    assert two.client(key=ADMIN).get("/stats").json()["server"]["sandboxes"] >= 4
    for each in made:
        alice.delete(f"/sandboxes/{each}")


def test_sdk_works_by_the_gateways_address_alone(two: Cluster) -> None:
    address = f"http://127.0.0.1:{two.gateways[0].port}"
    with cellwall.connect(address, ALICE) as client:
        assert client.run("print(6 * 7)").stdout == "42\n"
        with client.Sandbox() as sandbox:
            sandbox.run("x = 1")
            sandbox.files.write("a.txt", "hello")
            assert sandbox.run("print(x, open('a.txt').read())").stdout == "1 hello\n"
            assert sandbox.commands.run("echo $((6*7))").stdout == "42\n"


def test_page_of_the_gateways_own_origin_may_call_and_another_may_not(
    two: Cluster, alice: httpx.Client
) -> None:
    own = f"http://127.0.0.1:{two.gateways[0].port}"
    answer = alice.post("/execute", json={"code": "print(3)"}, headers={"origin": own})
    assert (answer.status_code, answer.json()["stdout"]) == (200, "3\n")
    other = alice.post("/execute", json={"code": "1"}, headers={"origin": "http://evil.example"})
    assert (other.status_code, other.json()["error"]["code"]) == (403, "origin_refused")
