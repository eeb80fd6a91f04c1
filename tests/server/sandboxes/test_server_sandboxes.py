"""Sandboxes, contexts and commands over HTTP: life, listing, state, reconnecting."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from kit.servers import Server, error_of, lines_of, new_sandbox, run_cell, running

OBJECT = {
    "id", "name", "status", "language", "template", "created_at", "expires_at", "isolation",
    "limits", "metadata",
}  # fmt: skip


@pytest.fixture
def client(server: Server) -> httpx.Client:
    return server.client()


@pytest.fixture
def sandbox(client: httpx.Client) -> str:
    return f"/sandboxes/{new_sandbox(client)}"


def test_sandbox_object_has_every_promised_key(client: httpx.Client) -> None:
    made = client.post("/sandboxes", json={"name": "n", "metadata": {"k": "v"}, "life_s": 60})
    assert made.status_code == 201
    body = made.json()
    assert set(body) >= OBJECT
    assert made.headers["location"] == f"/sandboxes/{body['id']}"
    assert (body["name"], body["metadata"], body["limits"]["life_s"]) == ("n", {"k": "v"}, 60)
    assert client.get(made.headers["location"]).json() == body


def test_state_is_kept_between_cells_and_streams_by_default(
    client: httpx.Client, sandbox: str
) -> None:
    lines = lines_of(client.post(f"{sandbox}/execute", json={"code": "x = 41\nprint(x)"}))
    assert [line["type"] for line in lines] == ["stdout", "end"]
    assert run_cell(client, sandbox, "x + 1")["results"] == [{"text/plain": "42"}]


def test_deleting_is_idempotent_and_the_record_says_why(client: httpx.Client, sandbox: str) -> None:
    first = client.delete(sandbox)
    assert (first.status_code, first.json()["id"]) == (200, sandbox.rpartition("/")[2])
    assert client.delete(sandbox).status_code == 200
    ended = client.get(sandbox).json()
    assert ended["status"] == "stopped"
    assert ended["ended_because"] == "it was closed"
    refused = client.post(f"{sandbox}/execute", json={"code": "1"})
    assert (refused.status_code, error_of(refused)["code"]) == (410, "sandbox_unavailable")


def test_list_filters_and_pages(client: httpx.Client) -> None:
    made = [new_sandbox(client, metadata={"batch": "pages"}) for _ in range(3)]
    new_sandbox(client, metadata={"batch": "other"})
    query: dict[str, str] = {"metadata.batch": "pages", "limit": "2"}
    first = client.get("/sandboxes", params=query).json()
    assert [each["id"] for each in first["sandboxes"]] == made[:0:-1]
    rest = client.get("/sandboxes", params={**query, "after": first["next"]}).json()
    assert [each["id"] for each in rest["sandboxes"]] == made[:1]
    assert rest["next"] is None
    client.delete(f"/sandboxes/{made[0]}")
    running = client.get("/sandboxes", params={"metadata.batch": "pages", "state": "running"})
    assert made[0] not in [each["id"] for each in running.json()["sandboxes"]]


def test_pages_go_on_behind_what_has_expired() -> None:
    with running(retention_s=0.5) as brief:
        client = brief.client()
        made = [new_sandbox(client) for _ in range(3)]
        first = client.get("/sandboxes", params={"limit": 1}).json()
        assert [each["id"] for each in first["sandboxes"]] == made[2:]
        client.delete(f"/sandboxes/{made[2]}")
        while client.get(f"/sandboxes/{made[2]}").status_code != 404:
            pass
        rest = client.get("/sandboxes", params={"after": first["next"]}).json()
        assert [each["id"] for each in rest["sandboxes"]] == made[1::-1]


@pytest.mark.parametrize("cursor", ["", "x", "nan~x", "2026-11-29T10:00:00.000Z", "12.5-x", "~x"])
def test_what_is_no_cursor_is_refused(client: httpx.Client, cursor: str) -> None:
    answer = client.get("/sandboxes", params={"after": cursor})
    assert (answer.status_code, error_of(answer)["code"]) == (400, "usage")


def test_life_is_extended_from_now_and_clipped(client: httpx.Client, sandbox: str) -> None:
    before = client.get(sandbox).json()["expires_at"]
    body = client.patch(sandbox, json={"life_s": 7200, "metadata": {"a": "b"}}).json()
    assert body["expires_at"] > before
    assert body["metadata"] == {"a": "b"}
    assert client.patch(sandbox, json={"life_s": 9e9}).json()["clipped"] == {"life_s": 9e9}


def test_whole_life_ends_a_sandbox_and_says_so(client: httpx.Client) -> None:
    sandbox = f"/sandboxes/{new_sandbox(client, life_s=1)}"
    with client.stream("POST", f"{sandbox}/execute", json={"code": "while True: pass"}) as answer:
        lines = list(answer.iter_lines())  # held until the reaper strikes
    assert '"verdict":"cancelled"' in lines[-1]
    assert "life of 1 s is over" in client.get(sandbox).json()["ended_because"]


def test_contexts_are_apart_and_can_be_restarted(client: httpx.Client, sandbox: str) -> None:
    made = client.post(f"{sandbox}/contexts", json={"name": "other"})
    assert (made.status_code, made.json()) == (201, {"name": "other", "language": "python"})
    run_cell(client, sandbox, "x = 1", context="other")
    assert run_cell(client, sandbox, "x")["verdict"] == "exception"
    names = {each["name"] for each in client.get(f"{sandbox}/contexts").json()["contexts"]}
    assert names == {"python", "other"}
    client.post(f"{sandbox}/contexts/other/restart").raise_for_status()
    assert run_cell(client, sandbox, "x", context="other")["verdict"] == "exception"
    client.delete(f"{sandbox}/contexts/other").raise_for_status()
    gone = client.delete(f"{sandbox}/contexts/other")
    assert (gone.status_code, error_of(gone)["code"]) == (404, "not_found")


def test_interrupt_ends_a_cell_and_keeps_the_context(client: httpx.Client, sandbox: str) -> None:
    run_cell(client, sandbox, "x = 5")
    code = "print('in', flush=True)\nwhile True: pass"
    with client.stream("POST", f"{sandbox}/execute", json={"code": code}) as answer:
        lines = answer.iter_lines()
        next(lines)
        client.post(f"{sandbox}/contexts/main/interrupt").raise_for_status()
        rest = list(lines)
    assert '"verdict":"interrupted"' in rest[-1]
    assert run_cell(client, sandbox, "x")["results"] == [{"text/plain": "5"}]


def test_command_streams_and_is_remembered(client: httpx.Client, sandbox: str) -> None:
    answer = client.post(f"{sandbox}/commands", json={"argv": ["sh", "-c", "echo a; exit 3"]})
    lines = lines_of(answer)
    assert [line["type"] for line in lines] == ["stdout", "end"]
    command = client.get(f"{sandbox}/commands/{answer.headers['x-command-id']}").json()
    assert (command["status"], command["exit_code"], command["stdout"]) == ("ended", 3, "a\n")


def test_background_command_is_fed_read_again_and_signalled(
    client: httpx.Client, sandbox: str
) -> None:
    made = client.post(f"{sandbox}/commands", json={"argv": ["cat"], "background": True})
    assert made.status_code == 201
    command = f"{sandbox}/commands/{made.json()['id']}"
    raw = {"Content-Type": "application/octet-stream"}
    written = client.post(f"{command}/stdin", content=b"one\n", headers=raw)
    assert written.json() == {"written": 4}
    with client.stream("GET", f"{command}/events") as answer:
        assert '"text":"one\\n"' in next(answer.iter_lines())
    client.post(f"{command}/stdin", content=b"two\n", headers=raw).raise_for_status()
    with client.stream("GET", f"{command}/events", params={"after": 1}) as answer:
        assert '"text":"two\\n"' in next(answer.iter_lines())
    client.post(f"{command}/signal", json={"signal": "TERM"}).raise_for_status()
    ended = client.get(command, params={"wait": 10}).json()
    assert (ended["verdict"], ended["signal"]) == ("signalled", 15)


def test_end_of_input_is_told(client: httpx.Client, sandbox: str) -> None:
    made = client.post(f"{sandbox}/commands", json={"argv": ["cat"], "background": True}).json()
    command = f"{sandbox}/commands/{made['id']}"
    client.post(f"{command}/stdin", params={"close": "true"}, content=b"x").raise_for_status()
    assert client.get(command, params={"wait": 10}).json()["stdout"] == "x"


def test_unknown_program_is_not_found(client: httpx.Client, sandbox: str) -> None:
    answer = client.post(f"{sandbox}/commands", json={"argv": ["no-such-program"]})
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


def test_metrics_and_log_tell_of_its_own_life(client: httpx.Client, sandbox: str) -> None:
    run_cell(client, sandbox, "sum(range(10**6))")
    metrics = client.get(f"{sandbox}/metrics").json()
    assert metrics["executions"] == 1
    assert metrics["memory_peak_bytes"] > 0
    log = client.get(f"{sandbox}/logs").json()["records"]
    assert [record["event"] for record in log] == ["created", "executed"]
    part = client.get(f"{sandbox}/logs", params={"limit": 1}).json()
    assert part["next"] == 1


def test_idempotent_creation_makes_one(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "make-one"}
    ids = {client.post("/sandboxes", json={}, headers=headers).json()["id"] for _ in range(3)}
    assert len(ids) == 1


def test_hundred_executes_at_once_on_one_session_queue(server: Server) -> None:
    """Q07: each runs once, one after the other; nothing is lost or mixed."""
    client = server.client()
    sandbox = f"/sandboxes/{new_sandbox(client)}"
    run_cell(client, sandbox, "seen = []")
    answers: list[dict[str, object]] = []

    def work(number: int) -> None:
        mine = server.client()
        answers.append(run_cell(mine, sandbox, f"seen.append({number}); print({number})"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(str(a["stdout"])) for a in answers) == list(range(100))
    length = run_cell(client, sandbox, "len(seen) == len(set(seen)) == 100")
    assert length["results"] == [{"text/plain": "True"}]


def test_idle_sandbox_is_gone_and_its_record_says_so(client: httpx.Client) -> None:
    """Q09."""
    sandbox = f"/sandboxes/{new_sandbox(client, idle_s=1)}"
    deadline = time.monotonic() + 10
    while client.get(sandbox).json()["status"] == "running":
        assert time.monotonic() < deadline
    assert client.get(sandbox).json()["ended_because"] == "it was idle for 1 s"
