"""Doors of other protocols behind a gateway over two nodes, and sessions of MCP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from mcp.client.client import Client

from cellwall.apps.doors.judge0.tokens import node_of as node_of_token
from cellwall.model.ids import node_of
from kit.cluster.processes import Cluster, cluster
from kit.server.mcp_doors import HttpDoor, facts_of, text_of
from kit.servers import ALICE, BOB

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

NAMES = ("e2b", "ragflow", "dify", "fusion", "piston", "judge0")
DOORS = "\n".join(f"[doors.{name}]" for name in NAMES)
PYTHON = 71
"""Judge0's number of it."""


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    with cluster(0, 0) as made:
        for name in ("node-0", "node-1"):
            made.start_node(name, more=DOORS)
        made.start_gateway(more=DOORS)
        made.wait_ready(2)
        yield made


@pytest.fixture
def alice(two: Cluster) -> httpx.Client:
    return two.client()


def _at(two: Cluster, path: str) -> str:
    return f"http://127.0.0.1:{two.gateways[0].port}{path}"


@pytest.mark.parametrize(
    ("path", "body", "found"),
    [
        ("/piston/api/v2/execute", {"language": "python", "version": "*",
                                    "files": [{"content": "print(6 * 7)"}]}, "run.stdout"),
        ("/fusion/run_code", {"code": "print(6 * 7)", "language": "python"}, "run_result.stdout"),
        ("/dify/v1/sandbox/run", {"language": "python3", "code": "print(6 * 7)"}, "data.stdout"),
    ],
)  # fmt: skip
def test_program_of_a_door_runs_on_some_node(
    alice: httpx.Client, path: str, body: dict[str, object], found: str
) -> None:
    answer = alice.post(path, json=body, headers={"authorization": f"Bearer {ALICE}"})
    assert answer.status_code == 200, answer.text
    value = answer.json()
    for name in found.split("."):
        value = value[name]
    assert value == "42\n"


def test_door_refuses_in_its_own_shape(two: Cluster) -> None:
    answer = two.client(key=None).post("/piston/api/v2/execute", json={})
    assert (answer.status_code, set(answer.json())) == (401, {"message"})


def test_submission_is_found_at_the_node_that_has_it(two: Cluster, alice: httpx.Client) -> None:
    headers = {"x-auth-token": ALICE}
    body = {"source_code": "print(6 * 7)", "language_id": PYTHON}
    tokens = []
    for _ in range(6):
        made = alice.post("/judge0/submissions", json=body, headers=headers)
        assert made.status_code == 201, made.text
        tokens.append(made.json()["token"])
    assert {node_of_token(each) for each in tokens} <= set(two.states())
    for each in tokens:
        assert alice.get(f"/judge0/submissions/{each}", headers=headers).status_code == 200
        other = alice.get(f"/judge0/submissions/{each}", headers={"x-auth-token": BOB})
        assert other.status_code == 404


def test_sandboxes_of_e2b_are_found_by_header_token_and_host(
    two: Cluster, alice: httpx.Client
) -> None:
    made = [alice.post("/e2b/v2/sandboxes", json={"templateID": "base"}) for _ in range(4)]
    assert {each.status_code for each in made} == {201}, made[0].text
    facts = [each.json() for each in made]
    answer = alice.get("/e2b/v2/sandboxes")
    assert answer.status_code == 200, answer.text
    listed = answer.json()
    assert {each["sandboxID"] for each in listed} == {each["sandboxID"] for each in facts}
    stranger = two.client(key=None)
    for each in facts:
        assert node_of(each["sandboxID"]) in two.states()
        other = each["envdAccessToken"][:-1] + ("1" if each["envdAccessToken"][-1] == "0" else "0")
        put = stranger.post(
            "/e2b/files?path=/home/user/a.txt",
            files={"file": b"hello"},
            headers={"x-access-token": each["envdAccessToken"]},
        )
        assert put.status_code == 200, put.text
        by_header = alice.get(
            "/e2b/files?path=/home/user/a.txt", headers={"e2b-sandbox-id": each["sandboxID"]}
        )
        assert by_header.text == "hello"
        wrong = stranger.get(
            "/e2b/files?path=/home/user/a.txt",
            headers={"x-access-token": other},
        )
        assert wrong.status_code == 401
        assert alice.delete(f"/e2b/sandboxes/{each['sandboxID']}").status_code == 204
    gone = alice.get(f"/e2b/sandboxes/{'a' * 30}")
    assert (gone.status_code, set(gone.json())) == (404, {"code", "message"})


def test_snapshots_of_e2b_are_listed_over_nodes_the_newest_first(
    two: Cluster, alice: httpx.Client
) -> None:
    boxes: list[str] = []
    while len({node_of(each) for each in boxes}) < 2:
        made = alice.post("/e2b/v2/sandboxes", json={"templateID": "base"})
        boxes.append(made.json()["sandboxID"])
    taken = [alice.post(f"/e2b/sandboxes/{each}/snapshots", json={}) for each in (*boxes, *boxes)]
    assert {each.status_code for each in taken} == {201}, taken[0].text
    names = [each.json()["snapshotID"] for each in taken]
    listed = alice.get("/e2b/snapshots")
    assert listed.status_code == 200, listed.text
    assert [each["snapshotID"] for each in listed.json()] == names[::-1]
    rising = alice.get("/e2b/snapshots", params={"order": "asc"})
    assert [each["snapshotID"] for each in rising.json()] == names
    of_one = alice.get("/e2b/snapshots", params={"sandboxID": boxes[0]}).json()
    assert [each["snapshotID"] for each in of_one] == [names[len(boxes)], names[0]]
    assert alice.get("/e2b/snapshots", params={"limit": 1}).status_code == 501
    for each in names:
        assert alice.delete(f"/e2b/templates/{each}").status_code == 204
    assert alice.get("/e2b/snapshots").json() == []
    for each in boxes:
        alice.delete(f"/e2b/sandboxes/{each}")


def test_session_of_mcp_stays_at_its_node(two: Cluster) -> None:
    async def use(client: Client) -> None:
        made = await client.call_tool("create_sandbox", {})
        sandbox = facts_of(made)["sandbox_id"]
        assert node_of(sandbox) in two.states()
        await client.call_tool("execute", {"sandbox_id": sandbox, "code": "x = 42"})
        said = await client.call_tool("execute", {"sandbox_id": sandbox, "code": "print(x)"})
        assert "42" in text_of(said)

    async def run() -> None:
        door = HttpDoor(_at(two, "/mcp"))
        for _ in range(3):
            async with door.client() as client:
                await use(client)

    asyncio.run(run())


def test_snapshot_is_found_by_its_name_on_whichever_node(alice: httpx.Client) -> None:
    made: list[str] = []
    while len({node_of(each) for each in made}) < 2:
        made.append(alice.post("/sandboxes", json={}).json()["id"])
    for number, each in enumerate(made):
        answer = alice.post(f"/sandboxes/{each}/snapshots", json={"name": f"kept-{number}"})
        assert answer.status_code == 201, answer.text
    for number, each in enumerate(made):
        found = alice.get(f"/snapshots/kept-{number}")
        assert found.status_code == 200, found.text
        assert node_of(found.json()["id"]) == node_of(each)
        assert alice.delete(f"/snapshots/kept-{number}").status_code == 200
        assert alice.delete(f"/sandboxes/{each}").status_code == 200
    assert alice.get("/snapshots/kept-0").status_code == 404


def test_thing_of_another_tenant_is_as_if_there_were_none(
    two: Cluster, alice: httpx.Client
) -> None:
    made = str(alice.post("/sandboxes", json={}).json()["id"])
    bob, shapes = two.client(key=BOB), []
    for each in (made, made[:4] + "a" * 26, "a" * 26):
        error = bob.get(f"/sandboxes/{each}").json()["error"]
        del error["request_id"]
        shapes.append(str(error).replace(each, "ID"))
    assert len(set(shapes)) == 1
    assert alice.delete(f"/sandboxes/{made}").status_code == 200


def test_addresses_are_signed_for_the_gateways_client(two: Cluster, alice: httpx.Client) -> None:
    made = f"/sandboxes/{alice.post('/sandboxes', json={}).json()['id']}"
    alice.put(f"{made}/files", params={"path": "a.txt"}, content=b"hello")
    signed = alice.post(f"{made}/files/sign", json={"path": "a.txt", "operation": "read"})
    assert signed.json()["url"].startswith(_at(two, "/signed/")), signed.text
    assert httpx.get(signed.json()["url"]).text == "hello"
    alice.delete(made)
