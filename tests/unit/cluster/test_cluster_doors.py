"""Doors at a gateway: where their requests go, and what nodes see of keys and tokens."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from cellwall.apps.cluster.doors import opened_doors
from cellwall.apps.doors.judge0.tokens import new_token, node_of
from cellwall.cluster.gateway.callers import caller_of
from cellwall.cluster.gateway.doors.opened import Opened
from cellwall.cluster.gateway.routing import Way, way_of
from cellwall.cluster.gateway.wire.heads import RequestHead, request_bytes
from cellwall.cluster.node.face import NodeFace
from cellwall.model.errors import NodeLost, UsageError
from cellwall.server.auth.keys import Failures, KeyRecord, KeyRing, digest_of, in_e2b_form
from cellwall.server.core.door_settings import DoorSettings
from cellwall.server.core.errors import HttpError
from cellwall.server.core.settings import ServerSettings

KEY = "k" * 43
RECORD = KeyRecord(digest_of(KEY), "alice")
NAMES = ("e2b", "ragflow", "dify", "fusion", "piston", "judge0")
ID = "a7c2" + "b" * 26
TOKEN = f"cws_{ID}_{RECORD.key_id}_{'0' * 64}"
DOORS = opened_doors(ServerSettings(doors={name: DoorSettings() for name in NAMES}))
E2B = DOORS["e2b"]


def _head(path: str = "/", **headers: str) -> RequestHead:
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return RequestHead(b"POST", path.encode(), named, named=dict(named))


def _sent(door: Opened, head: RequestHead, ring: KeyRing) -> bytes:
    """Return the head that a node gets."""
    caller = door.caller(head, "10.0.0.1", b"http", ring, {}, Failures())
    return request_bytes(head, caller.said, caller.dropped)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spelt", [KEY, in_e2b_form(KEY)])
def test_node_hears_the_tenant_and_sees_no_key(name: str, spelt: str) -> None:
    door = DOORS[name]
    for header in door.key_headers:
        value = f"Bearer {spelt}" if header == b"authorization" else spelt
        others = {"x_auth_token": spelt, "x_sandbox_token": spelt}
        head = _head(**{**others, header.decode().replace("-", "_"): value})
        sent = _sent(door, head, KeyRing([RECORD]))
        assert b"cellwall-tenant: alice\r\n" in sent
        assert spelt.encode() not in sent
        assert header + b": " in sent  # so that the door looks for its caller


@pytest.mark.parametrize("last", ["x", KEY])
def test_node_sees_no_key_of_a_header_that_comes_twice(last: str) -> None:
    twice = [(b"x-auth-token", KEY.encode()), (b"x-auth-token", last.encode())]
    head = RequestHead(b"POST", b"/", twice, named=dict(twice))
    assert KEY.encode() not in _sent(DOORS["judge0"], head, KeyRing([RECORD]))


def test_node_sees_no_key_among_the_protocols_of_a_websocket() -> None:
    head = _head(x_api_key=KEY, sec_websocket_protocol=f"graphql, key.{KEY}")
    for door in (E2B, DOORS["piston"]):
        sent = _sent(door, head, KeyRing([RECORD]))
        assert KEY.encode() not in sent
        assert b"sec-websocket-protocol: graphql\r\n" in sent
    caller = caller_of(head, "10.0.0.1", KeyRing([RECORD]), {}, Failures())
    assert KEY.encode() not in request_bytes(head, caller.said, caller.dropped)


class _Asked:
    """A request, as far as a node's face looks at it."""

    def __init__(self, path: str, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): text for name, text in headers.items()}
        self.scope = {"path": path, "type": "http"}


@pytest.mark.parametrize("path", ["/node/drain", "/node", "/sandboxes", "/health"])
def test_request_for_a_door_that_a_node_has_not_reaches_nothing_of_its_own(path: str) -> None:
    made = NodeFace(*cast("Any", [None] * 5))
    asked = cast("Any", _Asked(path, cellwall_door="piston"))
    for look in (made.is_open, lambda request: made.principal(request, cast("Any", None))):
        with pytest.raises(HttpError, match="not at this node"):
            look(asked)
    assert made.is_open(cast("Any", _Asked("/node/drain")))  # the control: a gateway's own


def test_piston_takes_the_whole_header_for_a_key() -> None:
    sent = _sent(DOORS["piston"], _head(authorization=KEY), KeyRing([RECORD]))
    assert b"cellwall-tenant: alice\r\n" in sent
    assert KEY.encode() not in sent
    assert b"cellwall-tenant" not in _sent(E2B, _head(authorization=KEY), KeyRing([RECORD]))


def test_first_key_counts_and_a_wrong_one_is_no_caller() -> None:
    head = _head(x_api_key="wrong" * 8, authorization=f"Bearer {KEY}")
    sent = _sent(DOORS["fusion"], head, KeyRing([RECORD]))
    assert b"cellwall-tenant" not in sent
    assert KEY.encode() not in sent


def test_client_says_nothing_in_the_gateways_words() -> None:
    head = _head(cellwall_tenant="bob", cellwall_door="e2b", cellwall_peer="9.9.9.9")
    sent = _sent(E2B, head, KeyRing([RECORD]))
    assert b"bob" not in sent
    assert b"cellwall-door" not in sent
    assert sent.count(b"cellwall-peer: 10.0.0.1\r\n") == 1


@pytest.mark.parametrize("header", ["x_access_token", "e2b_traffic_access_token"])
def test_token_goes_on_while_its_key_is_accepted(header: str) -> None:
    head = _head(**{header: TOKEN})
    assert TOKEN.encode() in _sent(E2B, head, KeyRing([RECORD]))
    assert TOKEN.encode() not in _sent(E2B, head, KeyRing())


def test_bearer_of_an_application_inside_goes_on() -> None:
    head = _head(authorization="Bearer of-the-application", e2b_traffic_access_token=TOKEN)
    assert b"Bearer of-the-application" in _sent(E2B, head, KeyRing([RECORD]))


def test_many_wrong_keys_are_slowed_down() -> None:
    failures, head = Failures(), _head(x_api_key="wrong" * 8)

    def ask() -> None:
        DOORS["dify"].caller(head, "10.0.0.1", b"http", KeyRing([RECORD]), {}, failures)

    for _ in range(10):
        ask()
    with pytest.raises(HttpError, match="too many refused keys"):
        ask()


def test_request_without_a_key_is_the_operators_tenant_and_a_wrong_key_is_not() -> None:
    settings = ServerSettings(doors={"piston": DoorSettings(tenant="chat")})
    door, ring = opened_doors(settings)["piston"], KeyRing([RECORD])
    assert b"cellwall-tenant: chat\r\n" in _sent(door, _head(), ring)
    assert b"cellwall-tenant" not in _sent(door, _head(authorization="wrong" * 8), ring)


def test_door_without_a_key_for_other_machines_is_refused() -> None:
    settings = ServerSettings(host="0.0.0.0", doors={"piston": DoorSettings(tenant="chat")})
    with pytest.raises(UsageError, match="without a key"):
        opened_doors(settings)
    with pytest.raises(UsageError, match="not known"):
        opened_doors(ServerSettings(doors={"other": DoorSettings()}))


OF_SANDBOX = Way("object", "a7c2", "sandbox", ID)


@pytest.mark.parametrize(
    ("method", "path", "headers", "way"),
    [
        ("POST", "/v2/sandboxes", {}, Way("template", path="templateID", makes="sandbox")),
        ("POST", "/sandboxes", {}, Way("template", path="templateID", makes="sandbox")),
        ("POST", f"/sandboxes/{ID}/f%6frk", {}, OF_SANDBOX._replace(makes="fork")),
        ("POST", f"/sandboxes/{ID}/fork", {}, OF_SANDBOX._replace(makes="fork")),
        ("GET", "/v2/sandboxes?limit=3", {}, Way("all", thing="array", path="/v2/sandboxes")),
        ("GET", f"/sandboxes/{ID}", {}, OF_SANDBOX),
        ("POST", f"//v2/sandboxes/{ID}/connect", {}, OF_SANDBOX),
        ("GET", "/files?path=a", {"host": f"49983-{ID}.boxes.example"}, OF_SANDBOX),
        ("GET", "/any/thing", {"host": f"8000-{ID}.boxes.example:99"}, OF_SANDBOX),
        ("POST", "/execute", {"e2b-sandbox-id": ID, "e2b-sandbox-port": "49999"}, OF_SANDBOX),
        ("POST", "/process.Process/Start", {"x-access-token": TOKEN}, OF_SANDBOX),
        ("GET", "/contexts", {"e2b-traffic-access-token": TOKEN}, OF_SANDBOX),
        ("GET", "/health", {}, Way("any")),
        ("GET", "/templates/aliases/base", {}, Way("template", name="base")),
        ("GET", "/v2/templates", {}, Way("all", thing="array", path="/v2/templates")),
        ("POST", "/v3/templates", {}, Way("template", thing="claim", path="name alias")),
        ("GET", "/templates/ours/files/00ff", {}, Way("template", name="ours")),
        ("POST", "/v2/templates/ours/builds/1-2", {}, Way("template", name="ours")),
        ("GET", "/templates/ours/builds/1-2/status?logsOffset=3", {}, Way("template", name="ours")),
        ("DELETE", "/templates/ours%3Av1", {}, Way("template", name="ours:v1")),
        ("POST", "/templates/tags", {}, Way("template", path="target name")),
        ("PUT", "/uploads/a7c2_1_2", {}, Way("object", "a7c2", "upload", "/uploads/a7c2_1_2")),
        ("PUT", "/uploads/1_2", {}, Way("all")),
        ("GET", "/files?path=a&signature=v1_x", {}, Way("all")),
    ],
)
def test_requests_of_e2b_go_where_their_sandbox_is(
    method: str, path: str, headers: dict[str, str], way: Way
) -> None:
    said = {key.encode(): value.encode() for key, value in headers.items()}
    assert E2B.way_of(method, path, said) == way


@pytest.mark.parametrize("name", ["ragflow", "dify", "fusion", "piston"])
def test_programs_of_a_door_count_and_its_questions_do_not(name: str) -> None:
    way_at = DOORS[name].way_of
    assert way_at("POST", "/run", {}) == Way("any", makes="program")
    assert way_at("GET", "/api/v2/connect", {}) == Way("any", makes="program")
    assert way_at("GET", "/api/v2/runtimes", {}) == Way("any")


def test_submissions_go_where_their_token_says() -> None:
    way_at = DOORS["judge0"].way_of
    mine, other = new_token("a7c2"), new_token("zzzz")
    assert way_at("POST", "/submissions?wait=true", {}) == Way("any", makes="program")
    assert way_at("POST", "/submissions?wait=false", {}) == Way("any")
    assert way_at("POST", "/submissions/batch?wait=true", {}) == Way("any")
    assert way_at("GET", f"/submissions/{mine}?fields=*", {})[:2] == ("object", "a7c2")
    assert way_at("GET", f"/submissions/batch?tokens={mine},{mine}", {})[:2] == ("object", "a7c2")
    assert way_at("GET", f"/submissions/batch?tokens={mine},{other}", {}).kind == "refused"
    assert way_at("GET", "/submissions", {}).kind == "all"
    assert way_at("GET", "/submissions/nonsense", {}).kind == "any"


@pytest.mark.parametrize("node", ["a7c2", "zzzz", "aaaa", "2357"])
def test_token_of_a_submission_has_its_node_and_the_form_of_a_uuid(node: str) -> None:
    token = new_token(node)
    assert node_of(token) == node
    assert len({new_token(node) for _ in range(50)}) == 50
    assert node_of(token[:-1]) == ""


def test_session_of_mcp_goes_where_it_is() -> None:
    session = "a7c2" + "0" * 32
    assert way_of("POST", "/mcp").kind == "any"
    assert way_of("DELETE", "/mcp", session) == Way("object", "a7c2", "session", session)


LOST = NodeLost("execution: its node is lost", remedy="run it again")


@pytest.mark.parametrize(
    ("name", "path", "headers", "status", "said"),
    [
        ("e2b", f"/sandboxes/{ID}", {}, 404, {"code": 404}),
        ("e2b", "/files", {b"e2b-sandbox-id": ID.encode()}, 502, {"sandboxId": ID, "code": 502}),
        ("piston", "/api/v2/execute", {}, 410, {"message": str(LOST)}),
        ("fusion", "/run_code", {}, 200, {"status": "SandboxError", "message": str(LOST)}),
        ("fusion", "/run_jupyter", {}, 200, {"status": "SandboxError"}),
        ("fusion", "/v1/ping", {}, 410, {"detail": str(LOST)}),
        ("judge0", "/submissions", {}, 410, {"error": str(LOST)}),
        ("dify", "/v1/sandbox/run", {}, 410, {"code": -400, "message": str(LOST)}),
        ("ragflow", "/run", {}, 200, {"status": "program_runner_error"}),
        ("ragflow", "/other", {}, 410, {"detail": str(LOST)}),
    ],
)
def test_gateway_tells_of_a_lost_node_as_the_door_would(
    name: str, path: str, headers: dict[bytes, bytes], status: int, said: dict[str, object]
) -> None:
    shaped = DOORS[name].shaped(LOST, path, headers)
    value = json.loads(shaped.body)
    assert shaped.status == status
    assert {key: value[key] for key in said} == said
