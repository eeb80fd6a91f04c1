"""Pages of listed origins: a browser's question before a request, and what an answer lets it read.

Each family of routes is asked: our own, servers inside sandboxes, the doors and a stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from cellwall.model.errors import UsageError
from cellwall.server.http import cross_origin
from kit.servers import ALICE, Server, error_of, new_sandbox, running

APP = "https://app.example"
PREFIX = "access-control-"
DOORS = "[doors.e2b]\n[doors.dify]\n[doors.piston]\n"
PATHS = (
    ("POST", "/execute"),
    ("DELETE", "/sandboxes/x"),
    ("GET", "/sandboxes/x/ports/8000/index.html"),
    ("POST", "/mcp"),
    ("POST", "/e2b/sandboxes"),
    ("POST", "/e2b/process.Process/Start"),
    ("POST", "/e2b/execute"),
    ("POST", "/dify/v1/sandbox/run"),
    ("POST", "/piston/api/v2/execute"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(DOORS, allowed_origins=[APP]) as made:
        yield made


def asked(server: Server, method: str, path: str, origin: str = APP) -> httpx.Response:
    """Ask as a browser does, which sends no key with the question."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "content-type,x-api-key",
    }
    return server.client(None).options(path, headers=headers)


def told(answer: httpx.Response) -> dict[str, str]:
    return {name: text for name, text in answer.headers.items() if name.startswith(PREFIX)}


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_browser_asks_without_a_key(server: Server, method: str, path: str) -> None:
    answer = asked(server, method, path)
    assert answer.status_code == 200
    found = told(answer)
    assert found["access-control-allow-origin"] == APP
    assert method in found["access-control-allow-methods"].split(", ")
    assert found["access-control-allow-headers"] == "content-type,x-api-key"
    assert "access-control-allow-credentials" not in found
    assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_question_opens_nothing(server: Server, method: str, path: str) -> None:
    """The request itself needs its key, and the page may read that it lacks it."""
    answer = server.client(None).request(method, path, headers={"Origin": APP})
    assert answer.status_code in {401, 404, 429}
    assert told(answer)["access-control-allow-origin"] == APP


@pytest.mark.parametrize(
    "origin", ["https://app.example.evil", "http://app.example", f"{APP}:444", "null", "*"]
)
def test_other_origins_are_told_nothing(server: Server, origin: str) -> None:
    answer = asked(server, "POST", "/execute", origin)
    assert (answer.status_code, error_of(answer)["code"]) == (403, "origin_refused")
    assert not told(answer)


def test_answers_are_readable_with_their_headers(server: Server) -> None:
    client = server.client(ALICE, Origin=APP)
    answer = client.post("/execute", json={"code": "print(1)"})
    assert answer.json()["stdout"] == "1\n"
    shown = told(answer)["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "x-execution-id", "content-type"} <= set(shown)
    with client.stream("POST", "/execute", json={"code": "print(2)", "stream": True}) as stream:
        assert told(stream)["access-control-allow-origin"] == APP


def test_requests_without_an_origin_are_as_before(server: Server) -> None:
    answer = server.client().get("/stats")
    assert answer.status_code == 200
    assert not told(answer)
    assert "vary" not in answer.headers


def test_servers_inside_permit_nothing_themselves(server: Server) -> None:
    """A program's own permission is dropped; the operator's stands for listed pages alone."""
    program = (
        "import http.server, threading\n"
        "class Open(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.send_header('Access-Control-Allow-Origin', '*')\n"
        "        self.end_headers()\n"
        "server = http.server.HTTPServer(('127.0.0.1', 8000), Open)\n"
        "threading.Thread(target=server.serve_forever).start()\n"
    )
    client = server.client()
    sandbox = new_sandbox(client)
    ran = client.post(f"/sandboxes/{sandbox}/execute", json={"code": program})
    assert ran.json()["outcome"]["verdict"] == "ok", ran.text
    path = f"/sandboxes/{sandbox}/ports/8000/"
    assert not told(client.get(path))
    answer = client.get(path, headers={"Origin": APP})
    assert answer.status_code == 200
    assert told(answer)["access-control-allow-origin"] == APP


@pytest.mark.parametrize("origin", ["*", "null", "app.example", f"{APP}/", "https://*.example"])
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(UsageError, match="no origin of a page"):
        cross_origin.listed([origin])


def test_origins_as_browsers_write_them() -> None:
    given = (APP, "http://localhost:3000", "http://[::1]:8080")
    assert cross_origin.listed(given) == set(given)


def test_without_a_list_no_question_is_answered() -> None:
    with running() as server:
        answer = asked(server, "POST", "/execute")
    assert (answer.status_code, error_of(answer)["code"]) == (403, "origin_refused")
    assert not told(answer)
