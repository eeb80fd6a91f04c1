"""No operation of the E2B door reaches a sandbox of another tenant, nor tells that it exists."""

from __future__ import annotations

import httpx
import pytest

from kit.server.e2b_doors import E2BServer, created, refusal
from kit.servers import ALICE, BOB

ONE = "/sandboxes/{id}"
OPERATIONS: list[tuple[str, str, dict[str, object] | None, int]] = [
    ("GET", ONE, None, 200),
    ("GET", f"{ONE}/metrics", None, 200),
    ("PUT", f"{ONE}/network", {}, 204),
    ("POST", f"{ONE}/timeout", {"timeout": 100}, 204),
    ("POST", f"{ONE}/refreshes", {"duration": 10}, 204),
    ("POST", f"{ONE}/snapshots", {}, 201),
    ("POST", f"{ONE}/fork", {}, 201),
    ("POST", f"{ONE}/connect", {}, 200),
    ("POST", f"/v2{ONE}/connect", {}, 200),
    ("POST", f"{ONE}/pause", {}, 204),
    ("POST", f"{ONE}/resume", {}, 201),
    ("DELETE", ONE, None, 204),
]
"""Every operation on one sandbox, in an order in which each succeeds for its owner."""


@pytest.fixture(scope="module")
def owned(e2b: E2BServer) -> str:
    return created(e2b.client(ALICE), metadata={"of": "alice"})["sandboxID"]


@pytest.mark.parametrize(("method", "path", "body", "_status"), OPERATIONS)
def test_a_foreign_sandbox_is_as_one_that_never_was(
    e2b: E2BServer,
    owned: str,
    method: str,
    path: str,
    body: dict[str, object] | None,
    _status: int,
) -> None:
    client = e2b.client(BOB)
    foreign = client.request(method, path.format(id=owned), json=body)
    unknown = client.request(method, path.format(id="a" * 26), json=body)
    message = refusal(foreign, 404)
    assert message.replace(owned, "a" * 26) == refusal(unknown, 404)


def test_a_foreign_sandbox_and_its_copies_are_in_no_list(e2b: E2BServer, owned: str) -> None:
    alice, bob = e2b.client(ALICE), e2b.client(BOB)
    snapshot = alice.post(f"/sandboxes/{owned}/snapshots", json={"name": "of-alice"}).json()
    for path in ("/v2/sandboxes", "/sandboxes", "/snapshots"):
        assert alice.get(path).json() != []
        assert owned not in bob.get(path).text
    assert bob.get("/snapshots").json() == []
    for name in ("of-alice", snapshot["snapshotID"]):
        refusal(bob.post("/v2/sandboxes", json={"templateID": name}), 404)
        refusal(bob.delete(f"/templates/{name}"), 404)
    assert alice.get("/snapshots").json() != []


def test_the_control_each_operation_works_for_its_owner(e2b: E2BServer) -> None:
    client = e2b.client(ALICE)
    sandbox_id = created(client)["sandboxID"]
    for method, path, body, status in OPERATIONS:
        answer = client.request(method, path.format(id=sandbox_id), json=body)
        assert answer.status_code == status, (method, path, answer.text)


def test_a_token_of_a_sandbox_is_no_key(e2b: E2BServer) -> None:
    made = created(e2b.client(ALICE))
    for token in (made["envdAccessToken"], made["trafficAccessToken"]):
        for headers in (
            {"X-API-KEY": token},
            {"Authorization": f"Bearer {token}"},
            {"X-Access-Token": token},
            {"E2B-Traffic-Access-Token": token},
        ):
            client: httpx.Client = e2b.client(None, **headers)
            refusal(client.get("/v2/sandboxes"), 401)
            refusal(client.delete(f"/sandboxes/{made['sandboxID']}"), 401)
