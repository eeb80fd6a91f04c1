"""Bad input: a 4xx with code, message, remedy and request id, never a 5xx, nothing started."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from cellwall.server.app import ENDPOINTS
from kit.servers import Server, error_of, new_sandbox

EXECUTE: list[tuple[str, Any, int]] = [
    ("nothing", {}, 400),
    ("empty code", {"code": ""}, 400),
    ("two codes", {"code": "1", "code_b64": "MQ=="}, 400),
    ("no base64", {"code_b64": "%%%"}, 400),
    ("base64 of no UTF-8", {"code_b64": "/w=="}, 400),
    ("NUL in code", {"code": "a\0b"}, 400),
    ("unknown field", {"code": "1", "cmd": "x"}, 400),
    ("host mount", {"code": "1", "mounts": ["/:/mnt"]}, 400),
    ("privileges", {"code": "1", "privileged": True}, 400),
    ("number as code", {"code": 1}, 400),
    ("list as body", [1], 400),
    ("text as body", "x", 400),
    ("unknown language", {"code": "1", "language": "cobol"}, 404),
    ("language as a path", {"code": "1", "language": "../bin/sh"}, 404),
    ("unknown template", {"code": "1", "template": "nope"}, 404),
    ("template as a path", {"code": "1", "template": "../../etc"}, 404),
    ("unknown runtime", {"code": "1", "runtime": "nope"}, 400),
    ("switched off runtime", {"code": "1", "runtime": "process", "isolation": "process"}, 400),
    ("no such level", {"code": "1", "isolation": "vm"}, 503),
    ("unknown level", {"code": "1", "isolation": "strong"}, 400),
    ("timeout of 0", {"code": "1", "timeout": 0}, 400),
    ("negative timeout", {"code": "1", "timeout": -1}, 400),
    ("timeout as text", {"code": "1", "timeout": "5"}, 400),
    ("timeout as bool", {"code": "1", "timeout": True}, 400),
    ("unknown limit", {"code": "1", "limits": {"gpus": 1}}, 400),
    ("fraction of a MiB", {"code": "1", "limits": {"memory_mb": 64.5}}, 400),
    ("tiny memory", {"code": "1", "limits": {"memory_mb": 1}}, 400),
    ("contradiction", {"code": "1", "timeout": 1, "limits": {"wall_s": 2}}, 400),
    ("odd max_memory", {"code": "1", "max_memory": "lots"}, 400),
    ("network", {"code": "1", "network": "host"}, 400),
    ("arguments as a list", {"code": "1", "arguments": [1]}, 400),
    ("absolute file", {"code": "1", "files": {"/etc/passwd": "x"}}, 400),
    ("file above", {"code": "1", "files": {"../x": "x"}}, 400),
    ("empty file name", {"code": "1", "files": {"": "x"}}, 400),
    ("NUL in a file name", {"code": "1", "files": {"a\0": "x"}}, 400),
    ("file as a number", {"code": "1", "files": {"a": 1}}, 400),
    ("collect above", {"code": "1", "collect": ["../../etc/passwd"]}, 400),
    ("variable with =", {"code": "1", "env": {"A=B": "x"}}, 400),
    ("variable with a digit first", {"code": "1", "env": {"1A": "x"}}, 400),
    ("much environment", {"code": "1", "env": {f"A{n}": "x" * 30_000 for n in range(9)}}, 400),
    ("two languages", {"code": "1", "language": "python", "lang": "bash"}, 400),
    ("two runtimes", {"code": "1", "runtime": "jail", "mode": "jail"}, 400),
    ("odd on_disconnect", {"code": "1", "on_disconnect": "explode"}, 400),
]


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


@pytest.fixture(scope="module")
def box(server: Server) -> str:
    return new_sandbox(server.client())


@pytest.mark.parametrize(("body", "status"), [e[1:] for e in EXECUTE], ids=[e[0] for e in EXECUTE])
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_execute_refuses(client: httpx.Client, body: Any, status: int, accept: str) -> None:
    answer = client.post("/execute", json=body, headers={"Accept": accept})
    assert answer.status_code == status, answer.text
    error = error_of(answer)
    assert error["remedy"]


@pytest.mark.parametrize("door", ["json", "ndjson", "sse", "background", "cell", "batch", "lines"])
@pytest.mark.parametrize(
    "code",
    [{"code": ""}, {"code": "   "}, {"code": "\n\f\n  \n\r\n" * 99}, {"code_b64": ""},
     {"code_b64": "ICAK"}],
)  # fmt: skip
def test_code_of_white_space_is_refused_at_every_door(
    client: httpx.Client, box: str, door: str, code: dict[str, str]
) -> None:
    """Control: who says that it is meant gets a program that ends well, at each of them."""
    refused, run = at_door(client, box, door, code), at_door(client, box, door, code, empty_ok=True)
    assert refused[0] == 400
    assert "empty" in refused[1]
    assert run[0] in {200, 202}, run
    assert door == "background" or '"verdict":"ok"' in run[1].replace(" ", "")


def at_door(client: httpx.Client, box: str, door: str, code: dict[str, str], **more: Any) -> Any:
    """Return status and text of what a door says to `code`."""
    media = {"ndjson": "application/x-ndjson", "sse": "text/event-stream"}
    headers, body = {"Accept": media.get(door, "application/json")}, {**code, **more}
    if door == "cell":
        path = f"/sandboxes/{box}/execute"
    elif door in {"batch", "lines"}:
        return in_batch(client, body, is_lines=door == "lines")
    else:
        path = "/execute"
        body |= {"background": True} if door == "background" else {}
    answer = client.post(path, json=body, headers=headers)
    return answer.status_code, answer.text


def in_batch(client: httpx.Client, body: dict[str, Any], *, is_lines: bool) -> tuple[int, str]:
    """Return how the one program of a batch was answered."""
    if is_lines:
        headers = {"Content-Type": "application/x-ndjson"}
        text = json.dumps(body) + "\n"
        answer = client.post("/executions/batch", content=text, headers=headers)
    else:
        answer = client.post("/executions/batch", json={"executions": [body]})
    assert answer.status_code == 200, answer.text
    is_refused = '"code":"usage"' in answer.text
    return 400 if is_refused else 200, answer.text


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null",
     b"\xff\xfe", b'{"code": "\\ud800"}', b'{"code": NaN}', b'{"timeout": 1e999}',
     b'{"code":"1","timeout":Infinity}', b"[" * 5000, b'{"code":"1"}{"code":"2"}'],
)  # fmt: skip
def test_what_is_not_json_is_refused(client: httpx.Client, text: bytes) -> None:
    answer = client.post("/execute", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    error_of(answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/sandboxes/nope"), ("DELETE", "/sandboxes/nope"), ("GET", "/executions/nope"),
        ("POST", "/sandboxes/nope/contexts/main/restart"), ("GET", "/nowhere"),
        ("GET", "/sandboxes/%2e%2e/metrics"), ("GET", "/sandboxes//files"), ("GET", "//health"),
        ("GET", "/signed/x"), ("GET", "/signed/" + "A" * 2000),
    ],
)  # fmt: skip
def test_unknown_things_are_not_found(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "state=sleeping", "metadata.=x", "colour=red",
     "limit=1&limit=2", "after=" + "x" * 100, "%ff=1", "limit=1e3"],
)  # fmt: skip
def test_bad_queries_are_refused(client: httpx.Client, query: str) -> None:
    answer = client.get(f"/sandboxes?{query}")
    assert (answer.status_code, error_of(answer)["code"]) == (400, "usage")


def test_no_route_takes_a_query_that_it_does_not_have(client: httpx.Client) -> None:
    """The server inside of a port has its own; a filter of a list may have any key.

    A page that asks for nothing takes any: a load balancer may add a number against caches.
    """
    sandbox = new_sandbox(client)
    made = {"sandbox_id": sandbox, "context": "main"}
    made["execution_id"] = client.post("/execute", json={"code": "1"}).json()["execution_id"]
    command = {"argv": ["true"], "background": True}
    made["command_id"] = client.post(f"/sandboxes/{sandbox}/commands", json=command).json()["id"]
    for endpoint in ENDPOINTS:
        if endpoint.access == "public":
            assert client.get(f"{endpoint.path}?colour=red").status_code == 200
        elif endpoint.method not in {"*", "WS"} and endpoint.scope == "run":
            path = re.sub(r"\{(\w+)\}", lambda name: made.get(name[1], "none"), endpoint.path)
            answer = client.request(endpoint.method, f"{path}?colour=red")
            # This server permits no builds, and whose a thing is goes before its query.
            said = (404, "not_found") if "{build_id}" in endpoint.path else (400, "usage")
            assert (answer.status_code, error_of(answer)["code"]) == said, endpoint
    assert client.get(f"/sandboxes/{sandbox}").json()["status"] == "running"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_very_many_fields_of_a_query_are_refused(client: httpx.Client, method: str) -> None:
    many = "&".join(f"f{n}=1" for n in range(70))
    answer = client.request(method, f"/sandboxes/{new_sandbox(client)}/files?path=x&{many}")
    assert (answer.status_code, error_of(answer)["code"]) == (400, "usage")


@pytest.mark.parametrize(
    "body",
    [{"metadata": {"k": 1}}, {"metadata": {f"k{n}": "v" for n in range(33)}}, {"name": ""},
     {"name": "n" * 65}, {"idle_s": 0}, {"life_s": -1}, {"limits": {"idle_s": "x"}},
     {"template": ""}, {"volumes": []}, {"owner": "bob"}],
)  # fmt: skip
def test_bad_sandboxes_are_refused(client: httpx.Client, body: dict[str, object]) -> None:
    answer = client.post("/sandboxes", json=body)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "usage")


@pytest.mark.parametrize(
    "body",
    [{}, {"argv": []}, {"argv": ["a"], "command": "b"}, {"argv": "ls"}, {"argv": ["a\0b"]},
     {"argv": ["true"], "cwd": "a\0"}, {"argv": ["true"], "env": {"": "x"}},
     {"command": ""}, {"argv": ["true"], "pty": True}],
)  # fmt: skip
def test_bad_commands_are_refused(client: httpx.Client, body: dict[str, object]) -> None:
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    answer = client.post(f"{sandbox}/commands", json=body)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "usage")
    assert client.get(f"{sandbox}/commands").json() == {"commands": []}


@pytest.mark.parametrize("key", ["", "a b", "k" * 129, "é"])
def test_bad_idempotency_keys_are_refused(client: httpx.Client, key: str) -> None:
    answer = client.post(
        "/execute", json={"code": "1"}, headers=[(b"Idempotency-Key", key.encode())]
    )
    assert answer.status_code == 400
