"""Pause and resume over HTTP, by the SDK's two faces and from the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

import cellwall
from cellwall.client import aconnect
from cellwall.model.errors import Conflict, SandboxUnavailable
from kit.servers import ADMIN, ALICE, BOB, Server, error_of, new_sandbox, run_cell


def test_paused_sandbox_says_so_and_resumes_with_the_next_cell(server: Server) -> None:
    client = server.client(ALICE)
    place = f"/sandboxes/{new_sandbox(client)}"
    run_cell(client, place, "x = 1")
    for _ in range(2):  # idempotent
        answer = client.post(f"{place}/pause")
        assert (answer.status_code, answer.json()["status"]) == (200, "paused"), answer.text
    assert client.get(place).json()["status"] == "paused"
    before = client.get(f"{place}/metrics").json()
    time.sleep(0.3)
    after = client.get(f"{place}/metrics").json()
    assert (after["status"], after["cpu_s"]) == ("paused", before["cpu_s"])
    assert run_cell(client, place, "print(x)")["stdout"] == "1\n"
    assert client.get(place).json()["status"] == "running"
    client.post(f"{place}/pause")
    answer = client.post(f"{place}/resume")
    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    events = [each["event"] for each in client.get(f"{place}/logs").json()["records"]]
    assert events.count("paused") == 2
    assert "resumed" in events


def test_manual_one_is_a_conflict_until_it_is_resumed(server: Server) -> None:
    client = server.client(ALICE)
    place = f"/sandboxes/{new_sandbox(client, resume='manual')}"
    assert client.get(place).json()["resume"] == "manual"
    client.post(f"{place}/pause")
    for path, body in (("/execute", {"code": "1"}), ("/commands", {"argv": ["true"]})):
        answer = client.post(f"{place}{path}", json=body)
        assert (answer.status_code, error_of(answer)["code"]) == (409, "conflict"), answer.text
    assert client.get(place).json()["status"] == "paused"
    client.post(f"{place}/resume")
    assert run_cell(client, place, "print(2)")["stdout"] == "2\n"


def test_lists_find_paused_ones_and_the_life_stands_still(server: Server) -> None:
    client = server.client(ALICE)
    paused, runs = (new_sandbox(client, metadata={"of": "pauses"}) for _ in range(2))
    client.post(f"/sandboxes/{paused}/pause")

    def listed(state: str) -> set[str]:
        params = {"state": state, "metadata.of": "pauses"}
        answer = client.get("/sandboxes", params=params).json()
        return {each["id"] for each in answer["sandboxes"]}

    assert listed("paused") == {paused}
    assert listed("running") == {runs}
    assert listed("live") == {paused, runs}
    first = client.get(f"/sandboxes/{paused}").json()["expires_at"]
    time.sleep(1.2)
    assert client.get(f"/sandboxes/{paused}").json()["expires_at"] > first
    stats = server.client(ADMIN).get("/stats").json()["server"]
    assert stats["paused"] >= 1


def test_idle_one_pauses_by_itself(server: Server) -> None:
    client = server.client(ALICE)
    sandbox = new_sandbox(client, auto_pause_s=1)
    assert client.get(f"/sandboxes/{sandbox}").json()["auto_pause_s"] == 1
    until = time.monotonic() + 10
    while client.get(f"/sandboxes/{sandbox}").json()["status"] != "paused":
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    "body", [{"auto_pause_s": 0}, {"auto_pause_s": 10**7}, {"resume": "never"}]
)
def test_odd_wishes_are_refused(server: Server, body: dict[str, object]) -> None:
    assert server.client(ALICE).post("/sandboxes", json=body).status_code == 400


def test_sandbox_of_another_is_unknown_and_an_ended_one_is_gone(server: Server) -> None:
    client = server.client(ALICE)
    sandbox = new_sandbox(client)
    for step in ("pause", "resume"):
        assert server.client(BOB).post(f"/sandboxes/{sandbox}/{step}").status_code == 404
    client.delete(f"/sandboxes/{sandbox}")
    answer = client.post(f"/sandboxes/{sandbox}/pause")
    assert error_of(answer)["code"] == "sandbox_unavailable", answer.text


def test_both_faces_of_the_sdk(server: Server) -> None:
    with cellwall.connect(server.address, api_key=ALICE) as client:
        with client.Sandbox(resume="manual") as sandbox:
            sandbox.run("x = 3")
            sandbox.pause()
            assert sandbox.status == "paused"
            with pytest.raises(Conflict):
                sandbox.run("x")
            sandbox.resume()
            assert sandbox.status == "running"
            assert sandbox.run("print(x)").stdout == "3\n"
            sandbox.pause()
        with pytest.raises(SandboxUnavailable):
            sandbox.pause()

    async def use() -> str:
        async with (
            await aconnect(server.address, ALICE) as client,
            client.AsyncSandbox.create(auto_pause_s=600) as sandbox,
        ):
            await sandbox.pause()
            status = sandbox.status
            assert (await sandbox.run("print(4)")).stdout == "4\n"
            await sandbox.refresh()
            return f"{status} {sandbox.status}"

    assert asyncio.run(use()) == "paused running"


def test_words_of_the_command_line(server: Server) -> None:
    sandbox = new_sandbox(server.client(ALICE), name="waits")

    def cellwall_sandbox(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "cellwall.apps.cli.main", "sandbox", *words],
            env={"CELLWALL_URL": server.address, "CELLWALL_API_KEY": ALICE},
            capture_output=True, check=False, encoding="utf-8", timeout=50,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert cellwall_sandbox("pause", "waits") == f"{sandbox}\n"
    line = next(each for each in cellwall_sandbox("ls").splitlines() if sandbox in each)
    assert "paused" in line
    assert cellwall_sandbox("resume", sandbox) == f"{sandbox}\n"
    line = next(each for each in cellwall_sandbox("ls").splitlines() if sandbox in each)
    assert "running" in line
