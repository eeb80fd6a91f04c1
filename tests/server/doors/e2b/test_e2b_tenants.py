"""No operation of the E2B door reaches a sandbox of another tenant, nor tells that it exists."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from kit.server.e2b_doors import E2BServer, created, refusal
from kit.server.e2b_templates import Workshop, archive, workshop
from kit.servers import ADMIN, ALICE, BOB, MANAGER
from kit.waiting import wait_until

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


# -- templates -------------------------------------------------------------------------------------

STEM, BUILD = "of-manager", "{build}"
DIGEST = "a" * 64
TEMPLATE_OPERATIONS: list[tuple[str, str, dict[str, object] | None, int]] = [
    ("GET", f"/templates/aliases/{STEM}", None, 200),
    ("GET", f"/templates/{STEM}/tags", None, 200),
    ("GET", f"/templates/{STEM}/files/{DIGEST}", None, 201),
    ("GET", f"/templates/{STEM}/builds/{BUILD}/status", None, 200),
    ("POST", "/templates/tags", {"target": STEM, "tags": ["more"]}, 201),
    ("DELETE", "/templates/tags", {"name": STEM, "tags": ["more"]}, 204),
    ("POST", "/v2/sandboxes", {"templateID": STEM, "timeout": 30}, 201),
    ("POST", "/v2/sandboxes", {"templateID": f"{STEM}:{BUILD}", "timeout": 30}, 201),
    ("POST", f"/v2/templates/{STEM}/builds/{BUILD}", {"fromTemplate": STEM}, 409),
    ("DELETE", f"/templates/{STEM}", None, 204),
]
"""Every operation on one template or its build, in an order in which each works for its owner; a
build is not started twice."""


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with workshop() as made:
        yield made


@pytest.fixture(scope="module")
def build_id(shop: Workshop) -> str:
    """A build of the manager's template, which has ended."""
    client = shop.e2b.client(MANAGER)
    made = client.post("/v3/templates", json={"name": STEM}).json()
    place = f"/templates/{STEM}/builds/{made['buildID']}"
    assert client.post(f"/v2{place}", json={"fromImage": shop.image}).status_code == 202
    wait_until(lambda: client.get(f"{place}/status").json()["status"] == "ready", "the build")
    return str(made["buildID"])


def asked(
    client: httpx.Client, operation: tuple[str, str, dict[str, object] | None, int], build: str
) -> httpx.Response:
    method, path, body, _ = operation
    filled = {
        name: value.replace(BUILD, build) if isinstance(value, str) else value
        for name, value in (body or {}).items()
    }
    return client.request(method, path.replace(BUILD, build), json=None if body is None else filled)


@pytest.mark.root
@pytest.mark.parametrize("operation", TEMPLATE_OPERATIONS)
def test_a_foreign_template_is_as_one_that_never_was(
    shop: Workshop,
    build_id: str,
    operation: tuple[str, str, dict[str, object] | None, int],
) -> None:
    method, path, body, _ = operation

    def renamed(value: object) -> object:
        return value.replace(STEM, "of-no-one") if isinstance(value, str) else value

    other = {name: renamed(value) for name, value in (body or {}).items()}
    unknown = (method, path.replace(STEM, "of-no-one"), body if body is None else other, 0)
    client = shop.e2b.client(ADMIN)
    foreign = asked(client, operation, build_id)
    status = 400 if foreign.status_code == 400 else 404
    message = refusal(foreign, status)
    assert message.replace(STEM, "of-no-one") == refusal(asked(client, unknown, build_id), status)


@pytest.mark.root
def test_a_foreign_template_is_in_no_list_and_is_no_base(shop: Workshop, build_id: str) -> None:
    mine, other = shop.e2b.client(MANAGER), shop.e2b.client(ADMIN)
    for path in ("/templates", "/v2/templates"):
        assert STEM in mine.get(path).text
        assert STEM not in other.get(path).text
    made = other.post("/v3/templates", json={"name": STEM}).json()
    place = f"/v2/templates/{STEM}/builds/{made['buildID']}"
    refusal(other.post(place, json={"fromTemplate": STEM}), 400)
    refusal(other.post(place, json={"fromTemplate": f"{STEM}:{build_id}"}), 400)


@pytest.mark.root
def test_files_of_one_tenant_are_not_those_of_another(shop: Workshop, build_id: str) -> None:
    path = f"/templates/{STEM}/files/{DIGEST}"
    mine, other = shop.e2b.client(MANAGER), shop.e2b.client(ADMIN)
    other.post("/v3/templates", json={"name": STEM})
    url = mine.get(path).json()["url"]
    assert httpx.put(url, content=archive({"a": b"1"})).status_code == 200
    assert mine.get(path).json()["present"]
    assert not other.get(path).json()["present"]
    assert build_id


@pytest.mark.root
def test_the_control_each_operation_on_a_template_works_for_its_owner(
    shop: Workshop, build_id: str
) -> None:
    client = shop.e2b.client(MANAGER)
    for operation in TEMPLATE_OPERATIONS:
        if operation[0] == "DELETE" and operation[1] == f"/templates/{STEM}":
            for each in client.get("/v2/sandboxes").json():
                client.delete(f"/sandboxes/{each['sandboxID']}")
        answer = asked(client, operation, build_id)
        assert answer.status_code == operation[3], (operation, answer.text)
