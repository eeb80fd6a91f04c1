"""Executions apart from connections: leaving, coming back, being slow."""

from __future__ import annotations

import json
import time

import httpx
import pytest

from kit.servers import ADMIN, Server, lines_of, new_sandbox, running

SLOW = "import time\nfor n in range(1000):\n    print(n, flush=True)\n    time.sleep(0.02)"


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


def begin(client: httpx.Client, path: str, code: str, **body: object) -> str:
    """Start a stream, read its first line, go away; return the execution's id."""
    headers = {"Accept": "application/x-ndjson"}
    with client.stream("POST", path, json={"code": code, **body}, headers=headers) as answer:
        assert json.loads(next(answer.iter_lines()))["seq"] == 1
        return answer.headers["x-execution-id"]


def ended(client: httpx.Client, execution: str) -> dict[str, object]:
    return dict(client.get(f"/executions/{execution}", params={"wait": 20}).json())


def test_one_shot_ends_when_its_client_leaves(client: httpx.Client) -> None:
    execution = begin(client, "/execute", SLOW)
    assert ended(client, execution)["verdict"] == "cancelled"


def test_one_shot_that_was_detached_goes_on(client: httpx.Client) -> None:
    code = "import time\nprint(0, flush=True)\ntime.sleep(0.5)\nprint('done')"
    execution = begin(client, "/execute", code, on_disconnect="detach")
    answer = ended(client, execution)
    assert (answer["verdict"], answer["stdout"]) == ("ok", "0\ndone\n")


def test_json_answer_is_cancelled_too(server: Server) -> None:
    client = server.client()
    with pytest.raises(httpx.ReadTimeout):
        client.post("/execute", json={"code": "while True: pass"}, timeout=0.5)
    deadline = time.monotonic() + 10
    stats = server.client(ADMIN)
    while stats.get("/stats").json()["server"]["running"]:
        assert time.monotonic() < deadline


def test_cell_goes_on_without_its_client_and_the_reader_resumes(client: httpx.Client) -> None:
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    code = "import time\nfor n in range(20):\n    print(n, flush=True)\n    time.sleep(0.02)"
    execution = begin(client, f"{sandbox}/execute", code)
    rest = lines_of(client.get(f"/executions/{execution}/events", params={"after": 1}))
    assert [line["seq"] for line in rest] == list(range(2, len(rest) + 2))
    text = "".join(line.get("text", "") for line in rest)
    assert text.endswith("19\n")
    assert rest[-1]["verdict"] == "ok"


def test_cell_that_asks_for_it_ends_with_its_client_and_the_context_lives(
    client: httpx.Client,
) -> None:
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    execution = begin(client, f"{sandbox}/execute", "x = 1\n" + SLOW, on_disconnect="cancel")
    assert ended(client, execution)["verdict"] == "cancelled"
    lines = lines_of(client.post(f"{sandbox}/execute", json={"code": "x"}))
    assert lines[0]["text"] == "1"


def test_cancelling_twice_is_fine(client: httpx.Client) -> None:
    execution = begin(client, "/execute", SLOW, on_disconnect="detach")
    first = client.delete(f"/executions/{execution}")
    assert first.json() == {"message": "cancelled", "id": execution}
    assert ended(client, execution)["verdict"] == "cancelled"
    assert client.delete(f"/executions/{execution}").json()["message"] == "it had ended"


def test_what_the_spool_no_longer_has_is_a_gap() -> None:
    code = "import sys\nfor n in range(400):\n    print('x' * 1000); sys.stdout.flush()"
    with running(store="none", spool_bytes=20_000) as server:
        client = server.client()
        answer = client.post("/execute", json={"code": code}).json()
        lines = lines_of(client.get(f"/executions/{answer['execution_id']}/events"))
    assert answer["stdout"] == ("x" * 1000 + "\n") * 400
    gap, first = lines[0], lines[1]
    assert gap == {"type": "gap", "after": 0, "next": first["seq"], "lost": first["seq"] - 1}
    assert lines[-1]["type"] == "end"


def test_several_readers_of_one_execution_see_the_same(client: httpx.Client) -> None:
    execution = begin(client, "/execute", "for n in range(5): print(n)", on_disconnect="detach")
    path = f"/executions/{execution}/events"
    with client.stream("GET", path) as one, client.stream("GET", path) as other:
        assert list(one.iter_lines()) == list(other.iter_lines())


def test_very_slow_reader_leaves_memory_flat(server: Server) -> None:
    """K16: a byte now and then from a program that writes without end."""
    client = server.client()
    code = "import os\nwhile True: os.write(1, b'y' * 65536)"
    body = json.dumps({"code": code, "timeout": 8, "limits": {"output_kb": 65_536}}).encode()
    with server.connect() as sock:
        sock.sendall(
            b"POST /execute HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n"
            b"X-API-Key: " + client.headers["x-api-key"].encode() + b"\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert sock.recv(1) == b"H"
        before = server.rss_bytes()
        peak = before
        until = time.monotonic() + 5
        while time.monotonic() < until:
            assert sock.recv(1)
            peak = max(peak, server.rss_bytes())
            time.sleep(0.05)
        assert client.get("/health").status_code == 200
    assert peak - before < 16 * 1024 * 1024


def test_fast_reader_of_the_same_program_gets_more_than_a_spool_holds(server: Server) -> None:
    """The control of the test above: what is not slow is not paused."""
    code = "import os\nfor _ in range(128): os.write(1, b'y' * 65536)"
    lines = lines_of(
        server.client().post(
            "/execute", json={"code": code}, headers={"Accept": "application/x-ndjson"}
        )
    )
    assert sum(len(line.get("text", "")) for line in lines) == 128 * 65_536
    assert all(line["type"] != "gap" for line in lines)
