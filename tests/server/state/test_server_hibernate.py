"""Hibernation over HTTP, by the SDK's two faces and from the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import cellwall
from cellwall.client import aconnect
from cellwall.model.errors import Conflict, UsageError
from kit.servers import (
    ADMIN,
    ALICE,
    BOB,
    Server,
    configuration,
    error_of,
    new_sandbox,
    run_cell,
    start,
)
from kit.waiting import wait_until

pytestmark = [pytest.mark.root]


def _status(client: httpx.Client, place: str) -> str:
    return str(client.get(place).json()["status"])


def _said(server: Server, *words: str) -> str:
    """What the command line prints."""
    done = subprocess.run(
        [sys.executable, "-m", "cellwall.apps.cli.main", *words],
        env={"CELLWALL_URL": server.address, "CELLWALL_API_KEY": ALICE},
        capture_output=True, check=False, encoding="utf-8", timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _hibernated(client: httpx.Client, place: str, **body: object) -> dict[str, object]:
    answer = client.post(f"{place}/hibernate", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    assert found["status"] == "hibernated"
    return found


def _remove_kept(client: httpx.Client) -> None:
    """Delete what other tests, which use the same server, have left on its disk."""
    for each in client.get("/snapshots").json()["snapshots"]:
        client.delete(f"/snapshots/{each['id']}")
    for each in client.get("/sandboxes").json()["sandboxes"]:
        if each["status"] == "hibernated":
            client.delete(f"/sandboxes/{each['id']}")
    wait_until(lambda: not client.get("/quota").json()["use"]["snapshots_mb"], "nothing is kept")


def test_it_is_seen_everywhere_and_only_a_request_brings_it_back(server: Server) -> None:
    client, admin = server.client(ALICE), server.client(ADMIN)
    sandbox = new_sandbox(client, metadata={"of": "sleep"})
    place = f"/sandboxes/{sandbox}"
    run_cell(client, place, "x = 41")
    taken = client.get("/quota").json()["use"]
    told = _hibernated(client, place)
    assert told["left_behind"] == []
    assert 0 < int(str(told["hibernated_bytes"])) < 5 << 20
    _hibernated(client, place)  # idempotent

    metrics = client.get(f"{place}/metrics").json()
    assert (metrics["status"], metrics["memory_bytes"]) == ("hibernated", 0)
    for state in ("hibernated", "live"):
        params = {"state": state, "metadata.of": "sleep"}
        (listed,) = client.get("/sandboxes", params=params).json()["sandboxes"]
        assert listed["id"] == sandbox
    params = {"state": "paused", "metadata.of": "sleep"}
    assert client.get("/sandboxes", params=params).json()["sandboxes"] == []
    stats = admin.get("/stats").json()["server"]
    assert stats["hibernated"] >= 1
    assert stats["hibernated_bytes"] > 0
    assert stats["copies"]["hibernations"] >= 1
    client.get(f"{place}/contexts")
    client.get(f"{place}/commands")
    now = client.get("/quota").json()["use"]
    assert now["memory_mb"] == taken["memory_mb"] - told["limits"]["memory_mb"]  # type: ignore[index]
    assert now["snapshots_mb"] > 0
    assert _status(client, place) == "hibernated"

    assert run_cell(client, place, "print(x + 1)")["stdout"] == "42\n"
    found = client.get(place).json()
    assert (found["id"], found["status"]) == (sandbox, "running")
    assert (found["hibernated_bytes"], found["hibernated_durable"]) == (None, None)
    assert client.get("/quota").json()["use"]["memory_mb"] == taken["memory_mb"]
    _hibernated(client, place)
    assert client.post(f"{place}/resume").json()["status"] == "running"
    events = [each["event"] for each in client.get(f"{place}/logs").json()["records"]]
    assert events.count("hibernated") == 2
    client.delete(place)


def test_what_would_be_lost_is_a_conflict_with_its_name(server: Server) -> None:
    client = server.client(ALICE)
    place = f"/sandboxes/{new_sandbox(client, hibernate_s=1)}"
    assert client.get(place).json()["hibernate_s"] == 1
    made = client.post(f"{place}/commands", json={"argv": ["sleep", "1000"], "background": True})
    assert made.status_code == 201, made.text
    answer = client.post(f"{place}/hibernate", json={})
    assert (answer.status_code, error_of(answer)["code"]) == (409, "conflict"), answer.text
    assert "sleep 1000" in str(error_of(answer)["message"])
    client.post(f"{place}/pause")
    wait_until(lambda: client.get(place).json()["stays_because"], "the reason why it stays")
    assert _status(client, place) == "paused"
    told = _hibernated(client, place, drop=True)
    assert "sleep 1000" in str(told["left_behind"])
    command = client.get(f"{place}/commands/{made.json()['id']}").json()
    assert (command["status"], command["verdict"]) == ("ended", "cancelled")
    client.delete(place)


def test_sandbox_of_another_is_unknown_and_an_ended_one_is_gone(server: Server) -> None:
    client = server.client(ALICE)
    place = f"/sandboxes/{new_sandbox(client)}"
    assert server.client(BOB).post(f"{place}/hibernate", json={}).status_code == 404
    assert _status(client, place) == "running"
    _hibernated(client, place)
    assert server.client(BOB).post(f"{place}/resume").status_code == 404
    client.delete(place)
    answer = client.post(f"{place}/hibernate", json={})
    assert error_of(answer)["code"] == "sandbox_unavailable", answer.text


@pytest.mark.parametrize("body", [{"hibernate_s": 0}, {"hibernate_s": 10**7}])
def test_odd_wishes_are_refused(server: Server, body: dict[str, object]) -> None:
    assert server.client(ALICE).post("/sandboxes", json=body).status_code == 400


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Server]:
    """A server that has room for one sandbox of 256 MiB at a time."""
    room = configuration(capacity_memory_mb=300, overcommit_memory=1.0)
    made = start(tmp_path, "--port", "0", config=room)
    yield made
    made.stop()


def test_wake_without_room_is_told_and_loses_nothing(narrow: Server) -> None:
    client = narrow.client(ALICE)
    limits = {"memory_mb": 256}
    first = f"/sandboxes/{new_sandbox(client, limits=limits)}"
    run_cell(client, first, "x = 7")
    assert client.post("/sandboxes", json={"limits": limits}).status_code == 503  # the control
    _hibernated(client, first)
    second = f"/sandboxes/{new_sandbox(client, limits=limits)}"
    for path, body in (("/execute", {"code": "x"}), ("/resume", None)):
        answer = client.post(f"{first}{path}", json=body)
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) > 0
        assert _status(client, first) == "hibernated"
    client.delete(second)
    assert run_cell(client, first, "print(x)")["stdout"] == "7\n"


def test_both_faces_of_the_sdk(server: Server) -> None:
    with (
        cellwall.connect(server.address, api_key=ALICE) as client,
        client.Sandbox(hibernate_s=600) as sandbox,
    ):
        sandbox.run("x = 3")
        command = sandbox.commands.start("sleep 1000")
        with pytest.raises(Conflict, match="sleep 1000"):
            sandbox.hibernate()
        command.kill()
        command.wait()
        assert sandbox.hibernate() == ()
        assert sandbox.status == "hibernated"
        assert sandbox.run("print(x)").stdout == "3\n"

    async def use() -> str:
        async with (
            await aconnect(server.address, ALICE) as client,
            client.AsyncSandbox.create() as sandbox,
        ):
            await sandbox.hibernate()
            status = sandbox.status
            await sandbox.resume()
            return f"{status} {sandbox.status}"

    assert asyncio.run(use()) == "hibernated running"


def test_files_alone_are_kept_if_the_request_says_so(server: Server) -> None:
    """All that runs ends and is named; another tenant's and an unknown word change nothing."""
    client = server.client(ALICE)
    _remove_kept(client)
    sandbox = new_sandbox(client)
    place = f"/sandboxes/{sandbox}"
    run_cell(client, place, "x = 41; _ = open('note', 'w').write('kept')")
    made = client.post(f"{place}/commands", json={"argv": ["sleep", "1000"], "background": True})
    assert server.client(BOB).post(f"{place}/hibernate", json={"keep": "files"}).status_code == 404
    assert client.post(f"{place}/hibernate", json={"keep": "memory"}).status_code == 400
    assert _status(client, place) == "running"
    taken = client.get("/quota").json()["use"]["memory_mb"]
    told = _hibernated(client, place, keep="files")
    assert told["hibernated_keeps"] == "files"
    assert "sleep 1000" in str(told["left_behind"])
    assert "context 'python'" in str(told["left_behind"])
    command = client.get(f"{place}/commands/{made.json()['id']}").json()
    assert (command["status"], command["verdict"]) == ("ended", "cancelled")
    assert client.get("/quota").json()["use"]["memory_mb"] < taken
    assert _hibernated(client, place, keep="files")["left_behind"] == []
    assert client.get(f"{place}/logs").json()["records"][-1]["keep"] == "files"

    done = run_cell(client, place, "print('x' in globals(), open('note').read())")
    assert done["stdout"] == "False kept\n"
    found = client.get(place).json()
    assert (found["status"], found["hibernated_keeps"]) == ("running", None)
    wait_until(lambda: not client.get("/quota").json()["use"]["snapshots_mb"], "the room is free")
    assert _hibernated(client, place)["hibernated_keeps"] == "session"
    client.delete(place)


def test_files_alone_in_the_sdk_and_on_the_command_line(server: Server) -> None:
    with (
        cellwall.connect(server.address, api_key=ALICE) as client,
        client.Sandbox() as sandbox,
    ):
        for hibernated in (
            lambda: sandbox.hibernate(keep="files"),
            lambda: _said(server, "sandbox", "hibernate", "--files", sandbox.id),
        ):
            sandbox.files.write("note", "kept")
            sandbox.run("x = 3")
            hibernated()
            assert sandbox.status == "hibernated"
            assert "NameError" in sandbox.run("x").stderr
            assert sandbox.files.read("note") == "kept"
        with pytest.raises(UsageError, match="'session' or 'files'"):
            sandbox.hibernate(keep="memory")  # type: ignore[arg-type]


def test_words_of_the_command_line(server: Server) -> None:
    sandbox = new_sandbox(server.client(ALICE), name="sleeps")

    def said(*words: str) -> str:
        return _said(server, *words)

    assert said("sandbox", "hibernate", "sleeps") == f"{sandbox}\n"
    for words in (("sandbox", "ls"), ("top", "--once")):
        line = next(each for each in said(*words).splitlines() if sandbox[:8] in each)
        assert "hibernated" in line
    assert said("sandbox", "resume", sandbox) == f"{sandbox}\n"
