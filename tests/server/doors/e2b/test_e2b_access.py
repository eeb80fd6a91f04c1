"""What opens a sandbox's own planes and ports: tokens, keys and hosts, and nothing else."""

from __future__ import annotations

import hashlib
import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime

import httpx
import pytest

from cellwall.server.auth.keys import in_e2b_form
from kit.server.e2b_doors import MADE, E2BServer, created, e2b_server, refusal
from kit.servers import ALICE, BOB, new_sandbox
from kit.waiting import wait_until

GONE = "The sandbox was not found"
PORT = 8123
SERVER = f"""
import http.server, json, threading

class Echo(http.server.BaseHTTPRequestHandler):
    def answer(self):
        size = int(self.headers.get("content-length") or 0)
        said = {{"method": self.command, "path": self.path, "headers": dict(self.headers),
                "body": self.rfile.read(size).decode()}}
        data = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer
    def log_message(self, *_):
        pass

served = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Echo)
threading.Thread(target=served.serve_forever, daemon=True).start()
"""


def gone(answer: httpx.Response, sandbox_id: str) -> None:
    assert answer.status_code == 502, answer.text
    assert answer.json() == {"sandboxId": sandbox_id, "message": GONE, "code": 502}
    assert "connection" not in answer.headers


def served(e2b: E2BServer, **body: object) -> dict[str, str]:
    """Create a sandbox with a server at PORT inside."""
    made = created(e2b.client(), **body)
    own = e2b.server.client(ALICE)
    answer = own.post(
        f"/sandboxes/{made['sandboxID']}/execute",
        json={"code": SERVER},
        headers={"Accept": "application/json"},
    )
    assert answer.json()["verdict"] == "ok", answer.text
    return made


@pytest.fixture(scope="module")
def inside(e2b: E2BServer) -> dict[str, str]:
    return served(e2b)


@pytest.fixture
def anyone(e2b: E2BServer) -> httpx.Client:
    return e2b.client(None)


def host(made: dict[str, str], port: int = PORT) -> str:
    return f"{port}-{made['sandboxID']}.{made['domain']}"


# -- the daemon's plane ------------------------------------------------------------------------


@pytest.mark.parametrize("has_id", [True, False])
def test_a_token_finds_its_sandbox_with_and_without_its_id(
    e2b: E2BServer, anyone: httpx.Client, has_id: bool
) -> None:
    made = created(e2b.client())
    headers = {"X-Access-Token": made["envdAccessToken"]}
    if has_id:
        headers |= {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49983"}
    assert anyone.get("/health", headers=headers).status_code == 204
    e2b.client().delete(f"/sandboxes/{made['sandboxID']}")
    gone(anyone.get("/health", headers=headers), made["sandboxID"])


def test_a_paused_sandbox_is_gone_until_it_is_resumed(e2b: E2BServer, anyone: httpx.Client) -> None:
    made = created(e2b.client())
    headers = {"X-Access-Token": made["envdAccessToken"]}
    e2b.client().post(f"/sandboxes/{made['sandboxID']}/pause")
    gone(anyone.get("/health", headers=headers), made["sandboxID"])
    e2b.client().post(f"/sandboxes/{made['sandboxID']}/connect")
    assert anyone.get("/health", headers=headers).status_code == 204


def test_a_token_does_not_open_another_sandbox(e2b: E2BServer, anyone: httpx.Client) -> None:
    mine, other = created(e2b.client()), created(e2b.client(BOB))
    sibling = created(e2b.client())
    for wanted in (other["sandboxID"], sibling["sandboxID"], "a" * 26):
        headers = {"X-Access-Token": mine["envdAccessToken"], "E2b-Sandbox-Id": wanted}
        assert anyone.get("/health", headers=headers).status_code == 401
        assert anyone.post("/files", headers=headers).status_code == 401


def test_a_token_reaches_no_control_plane_by_the_name_of_its_sandbox(
    e2b: E2BServer, anyone: httpx.Client
) -> None:
    made, sibling = created(e2b.client()), created(e2b.client())
    there = {
        "Host": host(made, 49983),
        "X-Access-Token": made["envdAccessToken"],
        "E2B-Traffic-Access-Token": made["trafficAccessToken"],
    }
    assert anyone.get("/health", headers=there).status_code == 204  # the control
    for method, path in (
        ("GET", "/v2/sandboxes"),
        ("POST", "/v2/sandboxes"),
        ("POST", f"/sandboxes/{sibling['sandboxID']}/connect"),
        ("DELETE", f"/sandboxes/{sibling['sandboxID']}"),
    ):
        refusal(anyone.request(method, path, headers=there, json=MADE), 404)
    assert e2b.client().get(f"/sandboxes/{sibling['sandboxID']}").status_code == 200


def test_the_token_of_ports_runs_no_code(e2b: E2BServer, anyone: httpx.Client) -> None:
    made = created(e2b.client())
    code = {"code": "print(1)"}
    there = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49999"}
    ports = {**there, "E2B-Traffic-Access-Token": made["trafficAccessToken"]}
    assert anyone.post("/execute", headers=ports, json=code).status_code == 401
    assert anyone.get("/contexts", headers=ports).status_code == 200  # the controls
    daemon = {**there, "X-Access-Token": made["envdAccessToken"]}
    assert anyone.post("/execute", headers=daemon, json=code).status_code == 200


def test_guesses_of_keys_at_the_health_of_a_sandbox_are_counted(
    e2b: E2BServer, anyone: httpx.Client
) -> None:
    headers = {"E2b-Sandbox-Id": created(e2b.client())["sandboxID"], "X-API-Key": "cw_guess"}
    found = [anyone.get("/health", headers=headers).status_code for _ in range(12)]
    assert found[:10] == [401] * 10
    assert found[-1] == 429


def test_a_key_opens_the_sandboxes_of_its_tenant_alone(e2b: E2BServer) -> None:
    made = created(e2b.client())
    headers = {"E2b-Sandbox-Id": made["sandboxID"]}
    assert e2b.client().get("/health", headers=headers).status_code == 204
    gone(e2b.client(BOB).get("/health", headers=headers), made["sandboxID"])
    gone(e2b.client(BOB).get("/health", headers={"E2b-Sandbox-Id": "a" * 26}), "a" * 26)


def test_a_sandbox_of_another_door_is_reached_through_this_one(e2b: E2BServer) -> None:
    sandbox_id = new_sandbox(e2b.server.client(ALICE))
    found = e2b.client().post(f"/v2/sandboxes/{sandbox_id}/connect", json={}).json()
    headers = {"X-Access-Token": found["envdAccessToken"]}
    assert e2b.client(None).get("/health", headers=headers).status_code == 204
    assert found["templateID"] == "python"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "missing signature query parameter"),
        ({"signature": "v1_x", "path": "/x"}, "invalid signature"),
        ({"signature": "", "path": "/x"}, "invalid signature"),
        ({f"signature{number}": "" for number in range(80)}, "missing signature query parameter"),
    ],
)
def test_a_file_without_a_token_needs_a_signature(
    anyone: httpx.Client, query: dict[str, str], message: str
) -> None:
    answer = anyone.get("/files", params=query)
    assert answer.status_code == 401
    assert answer.json() == {"code": 401, "message": message}


def test_guesses_of_signatures_are_counted_as_those_of_keys(anyone: httpx.Client) -> None:
    found = [anyone.get("/files", params={"signature": "v1_x"}) for _ in range(12)]
    assert [each.status_code for each in found[:10]] == [401] * 10
    assert found[-1].status_code == 429
    assert found[-1].json()["code"] == 429


def signed(token: str, operation: str, expiration: str | None) -> dict[str, str]:
    """Return the query of a signed address, as a client makes it."""
    text = f"/tmp/x:{operation}::{token}" + ("" if expiration is None else f":{expiration}")
    digest = b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    more = {} if expiration is None else {"signature_expiration": expiration}
    return {"path": "/tmp/x", "signature": f"v1_{digest}", **more}


@pytest.mark.parametrize("has_id", [True, False])
def test_a_signature_opens_a_file_for_what_was_signed_until_it_expires(
    e2b: E2BServer, has_id: bool
) -> None:
    made = created(e2b.client())
    anyone, token = e2b.client(None), made["envdAccessToken"]
    headers = {"E2b-Sandbox-Id": made["sandboxID"]} if has_id else {}

    def message(query: dict[str, str], method: str = "GET") -> str:
        answer = anyone.request(method, "/files", params=query, headers=headers)
        return str(answer.json()["message"]) if answer.status_code == 401 else "it is let in"

    assert message(signed(token, "read", None)) == "it is let in"
    assert message(signed(token, "read", "9999999999")) == "it is let in"
    assert message(signed(token, "write", None)) == "invalid signature"
    assert message(signed(token, "write", None), "POST") == "it is let in"
    assert message(signed(token, "read", "1")) == "signature is already expired"
    assert message(signed(token, "read", "-1")) == "signature is already expired"
    assert message(signed(made["trafficAccessToken"], "read", None)) == "invalid signature"
    e2b.client().delete(f"/sandboxes/{made['sandboxID']}")
    assert message(signed(token, "read", None)) == "invalid signature"


def test_remote_calls_are_refused_in_their_own_words(anyone: httpx.Client) -> None:
    answer = anyone.post("/process.Process/List", json={})
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthenticated"


# -- ports -------------------------------------------------------------------------------------


def test_a_port_is_reached_by_its_host_and_by_headers(
    anyone: httpx.Client, inside: dict[str, str]
) -> None:
    opened = {"E2B-Traffic-Access-Token": inside["trafficAccessToken"]}
    by_headers = {"E2b-Sandbox-Id": inside["sandboxID"], "E2b-Sandbox-Port": str(PORT)}
    for headers in ({"Host": host(inside)}, by_headers):
        # paths of the door's own, whatever the method, belong to the inside here
        for method, path in (
            ("GET", "/health"), ("DELETE", "/files?a=%2F"), ("POST", "/v2/sandboxes"),
            ("PATCH", "//x/../%2e"), ("GET", "/"),
        ):  # fmt: skip
            answer = anyone.request(method, path, headers={**headers, **opened}, content=b"hi")
            assert answer.status_code == 200, answer.text
            said = answer.json()
            assert (said["method"], said["body"]) == (method, "hi")
            assert said["path"] == str(answer.request.url.raw_path, "ascii")
            names = {name.lower() for name in said["headers"]}
            assert not {name for name in names if name.startswith(("e2b-", "x-access", "x-api"))}


def test_a_port_needs_a_token_of_its_own_sandbox(
    e2b: E2BServer, anyone: httpx.Client, inside: dict[str, str]
) -> None:
    there = {"Host": host(inside)}
    other = created(e2b.client())
    assert anyone.get("/", headers=there).status_code == 403
    for token in (other["trafficAccessToken"], "", "x"):
        headers = {**there, "E2B-Traffic-Access-Token": token}
        assert anyone.get("/", headers=headers).status_code == 401
    gone(e2b.client(BOB).get("/", headers=there), inside["sandboxID"])
    assert e2b.client(ALICE).get("/", headers=there).status_code == 200


def test_authorization_beside_the_token_of_ports_is_for_the_inside(
    anyone: httpx.Client, inside: dict[str, str]
) -> None:
    there = {"Host": host(inside), "E2B-Traffic-Access-Token": inside["trafficAccessToken"]}
    own = {**there, "Authorization": "Bearer its-own"}
    assert anyone.get("/", headers=own).json()["headers"]["authorization"] == "Bearer its-own"
    for key in (ALICE, in_e2b_form(ALICE)):
        answer = anyone.get("/", headers={**there, "Authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        assert key not in answer.text


def test_a_closed_port_is_told_apart_from_a_sandbox_that_is_gone(
    anyone: httpx.Client, inside: dict[str, str]
) -> None:
    headers = {
        "Host": host(inside, 8124),
        "E2B-Traffic-Access-Token": inside["trafficAccessToken"],
    }
    answer = anyone.get("/", headers=headers)
    assert answer.status_code == 502
    assert answer.json() == {
        "sandboxId": inside["sandboxID"],
        "message": "The sandbox is running but port is not open",
        "port": 8124,
        "code": 502,
    }


@pytest.mark.parametrize("resumes", [True, False])
def test_traffic_resumes_a_paused_sandbox_whose_client_wants_that(
    e2b: E2BServer, anyone: httpx.Client, resumes: bool
) -> None:
    made = served(e2b, autoPause=True, autoResume={"enabled": resumes}, timeout=60)
    one, client = f"/sandboxes/{made['sandboxID']}", e2b.client()
    client.post(f"{one}/timeout", json={"timeout": 1})
    wait_until(lambda: client.get(one).json()["state"] == "paused", "it is paused")
    token = {"X-Access-Token": made["envdAccessToken"]}
    gone(anyone.get("/health", headers=token), made["sandboxID"])
    there = {"Host": host(made), "E2B-Traffic-Access-Token": made["trafficAccessToken"]}
    answer = anyone.get("/", headers=there)
    if not resumes:
        gone(answer, made["sandboxID"])
        return
    assert answer.status_code == 200, answer.text
    found = client.get(one).json()
    assert found["state"] == "running"
    assert datetime.fromisoformat(found["endAt"]).timestamp() - time.time() > 200


@pytest.mark.parametrize(
    "name",
    ["0-{id}.localhost", "08123-{id}.localhost", "65536-{id}.localhost", "8123-{id}-.localhost",
     "8123--{id}.localhost", "8123-{id}/.localhost", "8123-%2e.localhost", "8123-{id}@localhost"],
)  # fmt: skip
def test_a_host_that_is_not_exactly_of_the_form_reaches_nothing(
    anyone: httpx.Client, inside: dict[str, str], name: str
) -> None:
    headers = {
        "Host": name.format(id=inside["sandboxID"]),
        "E2B-Traffic-Access-Token": inside["trafficAccessToken"],
    }
    answer = anyone.get("/", headers=headers)
    assert answer.status_code in {400, 401, 403}, answer.text


@pytest.fixture(scope="module")
def public() -> Iterator[E2BServer]:
    with e2b_server("", "public_ports = true\n", allowed_hosts=["*.localhost"]) as made:
        yield made


def test_where_the_operator_permits_it_ports_are_public_unless_the_client_says_no(
    public: E2BServer,
) -> None:
    client = public.client(None)
    opened = served(public)
    shut = served(public, network={"allowPublicTraffic": False})
    said = served(public, network={"allowPublicTraffic": True})
    assert client.get("/", headers={"Host": host(opened)}).status_code == 200
    assert client.get("/", headers={"Host": host(said)}).status_code == 200
    assert "E2B-Traffic-Access-Token" in refusal(client.get("/", headers={"Host": host(shut)}), 403)
    assert client.get("/health", headers={"Host": host(opened, 49983)}).status_code == 401
    assert client.post("/execute", headers={"Host": host(opened, 49999)}).status_code == 401


def test_a_visitor_hears_of_a_sandbox_that_is_gone_only_where_ports_are_public(
    e2b: E2BServer, public: E2BServer
) -> None:
    ended = created(public.client())
    public.client().delete(f"/sandboxes/{ended['sandboxID']}")
    for made in (ended, {**ended, "sandboxID": "0123456789abcdef"}):
        visitor = public.client(None)
        gone(visitor.get("/", headers={"Host": host(made)}), made["sandboxID"])
        refusal(e2b.client(None).get("/", headers={"Host": host(made)}), 403)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("own.example:${PORT}", f"own.example:{PORT}"), ("own.example", "own.example"),
     (None, f"localhost:{PORT}")],
)  # fmt: skip
def test_a_server_inside_sees_the_host_that_its_client_chose(
    e2b: E2BServer, mask: str | None, expected: str
) -> None:
    made = served(e2b, network={"maskRequestHost": mask})
    answer = e2b.client().get("/", headers={"Host": host(made)})
    assert answer.json()["headers"]["Host"] == expected
    shown = e2b.client().get(f"/sandboxes/{made['sandboxID']}").json()
    assert shown["network"].get("maskRequestHost") == mask
    assert shown["metadata"] == {}


@pytest.mark.parametrize("mask", ["a b", "a\r\nX: y", "https://a", "-", "a:${port}", "ä.example"])
def test_what_is_no_host_is_refused_as_one(e2b: E2BServer, mask: str) -> None:
    answer = e2b.client().post("/v2/sandboxes", json={**MADE, "network": {"maskRequestHost": mask}})
    assert "maskRequestHost" in refusal(answer, 400)
