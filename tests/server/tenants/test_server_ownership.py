"""Every route against another tenant: the table comes from the router, so no route is forgotten.

API-6, 8, 9, 11 and Q08. What Bob asks of Alice's things answers exactly as what never existed.
"""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import httpx
import pytest

from cellwall.server.app import ENDPOINTS
from cellwall.server.http.endpoint import Endpoint
from kit.servers import ADMIN, ALICE, BOB, MANAGER, Server, error_of, new_sandbox

_NAMED = re.compile(r"\{(\w+)(?::\w+)?\}")
OWNED = {"sandbox_id", "execution_id", "command_id", "snapshot_id"}
BODIES: dict[str, dict[str, Any]] = {
    "ContextBody": {"name": "c"},
    "NetworkBody": {"mode": "none"},
    "PackagesBody": {"packages": ["six"]},
    "SecretBody": {"value": "a-value-of-a-test", "hosts": ["example.org"]},
    "SandboxChange": {"name": "n"},
    "CheckpointBody": {"name": "c"},
    "CellBody": {"code": "1"},
    "CommandBody": {"argv": ["true"]},
    "SignalBody": {"signal": 15},
    "MkdirBody": {"path": "d"},
    "MoveBody": {"path": "a", "target": "b"},
    "SignBody": {"path": "a", "operation": "read"},
    "PortSignBody": {"port": 8000},
    "ExecuteBody": {"code": "1"},
    "BatchBody": {"executions": []},
    "SandboxBody": {},
    "KeyBody": {"tenant": "carol"},
    "ImageBody": {"image": "python:3.12-slim"},
    "VolumeBody": {"name": "data", "size_mb": 1},
    "CopyBody": {"name": "copy"},
    "ForkBody": {"count": 1},
    "SnapshotBody": {"expires_s": 60},
    "RestoreBody": {"reseed": True},
    "HibernateBody": {"drop": True},
    "TemplateBody": {"name": "x", "dockerfile": "FROM scratch"},
    "ToolAnswer": {"result": 1},
}
QUERIES = {"PathQuery": {"path": "a"}, "WriteQuery": {"path": "a"}, "RemoveQuery": {"path": "a"}}


def names_of(endpoint: Endpoint) -> set[str]:
    return set(_NAMED.findall(endpoint.path))


NAMING = [each for each in ENDPOINTS if names_of(each) & OWNED and each.method != "WS"]


@pytest.fixture(scope="module")
def alices(server: Server) -> dict[str, str]:
    """Return ids of things of Alice's."""
    client = server.client(ALICE)
    sandbox = new_sandbox(client, name="hers", metadata={"secret": "of-alice"})
    command = client.post(
        f"/sandboxes/{sandbox}/commands", json={"argv": ["cat"], "background": True}
    ).json()["id"]
    execution = client.post("/execute", json={"code": "print('of-alice')"}).json()["execution_id"]
    snapshot = client.post(f"/sandboxes/{sandbox}/snapshots", json={}).json()["id"]
    checkpoint = client.post(f"/sandboxes/{sandbox}/checkpoints", json={}).json()["id"]
    return {
        "checkpoint_id": checkpoint,
        "sandbox_id": sandbox, "command_id": command, "execution_id": execution,
        "snapshot_id": snapshot,
        "context": "main", "port": "8000", "path": "x", "call": "1", "name": "A_SECRET",
    }  # fmt: skip


def ask(client: httpx.Client, endpoint: Endpoint, ids: dict[str, str]) -> httpx.Response:
    path = _NAMED.sub(lambda found: ids[found[1]], endpoint.path)
    method = "GET" if endpoint.method == "*" else endpoint.method
    arguments: dict[str, Any] = {}
    if endpoint.query is not None:
        arguments["params"] = QUERIES.get(endpoint.query.__name__, {})
    if endpoint.body is not None:
        arguments["json"] = BODIES[endpoint.body.__name__]
    elif endpoint.body_media is not None:
        arguments["content"] = b"data"
        arguments["headers"] = {"Content-Type": endpoint.body_media}
    return client.request(method, path, **arguments)


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


@pytest.mark.parametrize("endpoint", NAMING, ids=name_of)
def test_things_of_others_are_as_if_there_were_none(
    server: Server, alices: dict[str, str], endpoint: Endpoint
) -> None:
    bob = server.client(BOB)
    theirs = ask(bob, endpoint, alices)
    unknown = {k: v if k not in OWNED else "0" * 26 for k, v in alices.items()}
    nobodys = ask(bob, endpoint, unknown)
    assert theirs.status_code == nobodys.status_code == 404, theirs.text
    shapes = []
    for answer, ids in ((theirs, alices), (nobodys, unknown)):
        error = error_of(answer)
        error.pop("request_id")
        text = str(error)
        for value in ids.values():
            text = text.replace(value, "ID") if len(value) == 26 else text
        shapes.append(text)
    assert shapes[0] == shapes[1]


def test_admin_of_another_tenant_is_another_tenant(server: Server, alices: dict[str, str]) -> None:
    assert server.client(ADMIN).get(f"/sandboxes/{alices['sandbox_id']}").status_code == 404


@pytest.mark.parametrize("endpoint", NAMING, ids=name_of)
def test_without_a_key_nothing_is_named(
    server: Server, alices: dict[str, str], endpoint: Endpoint
) -> None:
    assert ask(server.client(None), endpoint, alices).status_code in {401, 429}


def test_owner_reaches_them(server: Server, alices: dict[str, str]) -> None:
    """The control: the same ids work for whom they belong to."""
    client = server.client(ALICE)
    for endpoint in NAMING:
        if (
            endpoint.method == "GET"
            and "watch" not in endpoint.path
            and "events" not in endpoint.path
        ):
            assert ask(client, endpoint, alices).status_code != 404 or "files" in endpoint.path


KEYED = [each for each in ENDPOINTS if each.access == "key" and each.method != "WS"]
SCOPES = {"run": ALICE, "manage": MANAGER, "admin": ADMIN}


@pytest.mark.parametrize("endpoint", KEYED, ids=name_of)
def test_every_route_wants_the_scope_it_says(server: Server, endpoint: Endpoint) -> None:
    """API-2: less is refused before the thing is looked for; as much is not refused."""
    ids = dict.fromkeys(("sandbox_id", "command_id", "execution_id", "key_id"), "0" * 26)
    ids |= {"context": "main", "port": "8000", "path": "x", "call": "1", "name": "A_SECRET"}
    ids |= {"snapshot_id": "0" * 26, "checkpoint_id": "0" * 26}
    ids |= {"image_id": f"sha256:{'0' * 64}", "pull_id": "0" * 26, "build_id": "0" * 26}
    names = list(SCOPES)
    for scope, key in SCOPES.items():
        answer = ask(server.client(key), endpoint, ids)
        is_enough = names.index(scope) >= names.index(endpoint.scope)
        is_forbidden = answer.status_code == 403 and error_of(answer)["code"] == "forbidden"
        assert is_forbidden is not is_enough, (scope, answer.text)


def test_some_routes_want_more_than_the_least_scope() -> None:
    """The control of the one above: it refuses something."""
    assert {each.path for each in KEYED if each.scope == "admin"} >= {"/keys", "/keys/{key_id}"}


def test_every_route_says_how_it_is_protected() -> None:
    for endpoint in ENDPOINTS:
        if endpoint.access == "public":
            assert not names_of(endpoint), endpoint.path
        if endpoint.access == "token":
            assert endpoint.path.startswith(("/signed/", "/sandboxes/{sandbox_id}/ports/"))


@pytest.mark.parametrize(
    "headers",
    [{"X-Tenant": "alice"}, {"X-Forwarded-User": "alice"}, {"Cookie": "tenant=alice"}],
)
def test_tenant_cannot_be_claimed(
    server: Server, alices: dict[str, str], headers: dict[str, str]
) -> None:
    bob = server.client(BOB)
    assert bob.get(f"/sandboxes/{alices['sandbox_id']}", headers=headers).status_code == 404
    assert bob.get("/sandboxes", headers=headers, params={"tenant": "alice"}).status_code == 400
    body = {"code": "1", "tenant": "alice"}
    assert bob.post("/execute", json=body, headers=headers).status_code == 400


def test_lists_and_numbers_show_only_own_things(server: Server, alices: dict[str, str]) -> None:
    bob = server.client(BOB)
    before = bob.get("/stats").json()
    mine = new_sandbox(bob)
    listed = bob.get("/sandboxes", params={"limit": 1000}).json()["sandboxes"]
    assert alices["sandbox_id"] not in [each["id"] for each in listed]
    assert mine in [each["id"] for each in listed]
    assert "of-alice" not in str(listed)
    after = bob.get("/stats").json()
    assert after["sandboxes"] == before["sandboxes"] + 1
    new_sandbox(server.client(ALICE))
    assert bob.get("/stats").json()["sandboxes"] == after["sandboxes"]
    assert after["server"] is None


def test_ids_do_not_count(server: Server) -> None:
    ids = [new_sandbox(server.client(BOB)) for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(re.fullmatch("[0-9a-z]{26}", each) for each in ids)
    assert len({each[:8] for each in ids}) == 3


def test_unknown_and_foreign_take_the_same_time(server: Server, alices: dict[str, str]) -> None:
    bob = server.client(BOB)
    times: dict[str, list[float]] = {alices["sandbox_id"]: [], "0" * 26: []}
    for _ in range(200):
        for name, found in times.items():
            began = time.perf_counter()
            bob.get(f"/sandboxes/{name}")
            found.append(time.perf_counter() - began)
    one, other = (statistics.median(found) for found in times.values())
    assert abs(one - other) < 0.5 * min(one, other)
