"""Pages of listed origins at a gateway: what answers here and what comes from nodes says so."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from kit.cluster.processes import Cluster, cluster
from kit.servers import new_sandbox, run_cell

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

APP, OTHER = "https://app.example", "https://other.example"
PREFIX = "access-control-"
DOORS = "[doors.e2b]\n[doors.dify]"


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    """Two nodes, of which each lists the page, too, and a gateway that lists it."""
    with cluster(0, 0) as made:
        for name in ("node-0", "node-1"):
            made.start_node(name, more=DOORS, allowed_origins=[APP])
        made.start_gateway(more=DOORS, allowed_origins=[APP])
        made.wait_ready(2)
        yield made


def told(answer: httpx.Response) -> list[tuple[str, str]]:
    return sorted(each for each in answer.headers.multi_items() if each[0].startswith(PREFIX))


def origins(answer: httpx.Response) -> list[str]:
    return [text for name, text in told(answer) if name == f"{PREFIX}allow-origin"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/execute"),
        ("DELETE", "/sandboxes/x"),
        ("GET", "/sandboxes"),
        ("POST", "/mcp"),
        ("POST", "/e2b/sandboxes"),
        ("POST", "/dify/v1/sandbox/run"),
    ],
)
def test_browser_asks_without_a_key(two: Cluster, method: str, path: str) -> None:
    headers = {
        "Origin": APP,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "content-type,x-api-key",
    }
    client = two.client(key=None)
    answer = client.options(path, headers=headers)
    assert (answer.status_code, origins(answer)) == (200, [APP])
    found = dict(told(answer))
    assert method in found[f"{PREFIX}allow-methods"].split(", ")
    assert found[f"{PREFIX}allow-headers"] == "content-type,x-api-key"
    assert answer.headers["vary"] == "Origin"
    other = client.options(path, headers={**headers, "Origin": OTHER})
    assert (other.status_code, told(other)) == (403, [])
    plain = client.options(path, headers={"Origin": APP})
    assert plain.status_code in {401, 404, 405}, "a question without a method is a request"


def test_answers_of_nodes_and_of_the_gateway_are_readable_once(two: Cluster) -> None:
    """A browser refuses an answer that permits twice."""
    client = two.client()
    client.headers["Origin"] = APP
    ran = client.post("/execute", json={"code": "print(1)"})
    assert (ran.json()["stdout"], origins(ran)) == ("1\n", [APP])
    shown = dict(told(ran))[f"{PREFIX}expose-headers"].split(", ")
    assert {"x-request-id", "x-execution-id", "content-type"} <= set(shown)
    box = new_sandbox(client)
    assert run_cell(client, f"/sandboxes/{box}", "print(2)")["stdout"] == "2\n"
    for method, path, body, status in (
        ("GET", "/sandboxes", None, 200),  # a list over nodes
        ("POST", "/executions/batch", {"executions": [{"code": "1"}]}, 200),
        ("GET", "/sandboxes/none-0/x", None, 404),
        ("POST", "/execute", {"code": 1}, 400),
        ("POST", "/dify/v1/sandbox/run", {"language": "python3", "code": "print(1)"}, 200),
    ):
        answer = client.request(method, path, json=body)
        assert (answer.status_code, origins(answer)) == (status, [APP]), path
    refused = two.client(key=None).get("/sandboxes", headers={"Origin": APP})
    assert (refused.status_code, origins(refused)) == (401, [APP])
    with client.stream("POST", "/execute", json={"code": "print(3)", "stream": True}) as stream:
        assert origins(stream) == [APP]


def test_requests_of_no_page_are_as_before(two: Cluster) -> None:
    answer = two.client().post("/execute", json={"code": "1"})
    assert (answer.status_code, told(answer)) == (200, [])
    assert "vary" not in answer.headers
