"""Forks and snapshots over HTTP and by the SDK: what they have, whose they are, what they count."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

import cellwall
from cellwall.model.errors import Conflict, HostUnsupported, NotFound
from conftest import Require
from kit.servers import ADMIN, ALICE, BOB, Server, error_of, new_sandbox, running
from kit.waiting import wait_until

ARGV = [sys.executable, "-m", "cellwall.apps.cli.main"]
SET = "import random\nvalue = 41\nopen('/home/user/note.txt', 'w').write('kept')"
THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
TELL = "print(value, open('/home/user/note.txt').read())"


@pytest.fixture(scope="module")
def door() -> Iterator[Server]:
    with running() as made:
        yield made


def test_snapshots_of_a_tenant_have_a_quota() -> None:
    """Beside it another tenant has its own, and what is deleted is there again."""
    big = "import os; big = os.urandom(5 << 20)"
    with running("[tiers.default]\nsnapshots_mb = 12\n") as server:
        client, other = server.client(), server.client(BOB)
        place = f"/sandboxes/{(sandbox := new_sandbox(client))}/snapshots"
        told(client, sandbox, big)
        first = client.post(place, json={"name": "one"})
        assert first.status_code == 201, first.text
        refused = client.post(place, json={"name": "two"})
        assert (refused.status_code, error_of(refused)["quota"]) == (429, "snapshots_mb")
        refused = client.post(f"/sandboxes/{sandbox}/fork", json={"count": 1})
        assert (refused.status_code, error_of(refused)["quota"]) == (429, "snapshots_mb")
        shown = client.get("/quota").json()
        assert (shown["quotas"]["snapshots_mb"], 6 < shown["use"]["snapshots_mb"] < 12) == (
            12,
            True,
        )
        foreign = new_sandbox(other)
        told(other, foreign, big)
        assert other.post(f"/sandboxes/{foreign}/snapshots", json={}).status_code == 201
        assert client.delete(f"/snapshots/{first.json()['id']}").status_code == 200
        assert client.get("/quota").json()["use"]["snapshots_mb"] == 0
        assert client.post(place, json={"name": "two"}).status_code == 201


def test_fork_whose_client_has_left_leaves_no_copies(door: Server) -> None:
    """The quota is the witness: what was written down is given back once no copy is alive."""
    client = door.client()
    source = new_sandbox(client)
    told(client, source, "import os; big = os.urandom(150 << 20)")

    def use() -> tuple[int, int]:
        found = client.get("/quota").json()["use"]
        return found["snapshots_mb"], found["sandboxes"]

    before = use()
    assert before[0] == 0
    with door.connect() as leaving:
        body = b'{"count": 12}'
        head = (
            f"POST /sandboxes/{source}/fork HTTP/1.1\r\nhost: localhost\r\nx-api-key: {ALICE}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        leaving.sendall(head.encode() + body)
        wait_until(lambda: use()[0] > 0, "the session is being written down")
    wait_until(lambda: use() == before, "nothing of it is left")
    assert told(client, source, "print(len(big))") == "157286400\n"
    client.delete(f"/sandboxes/{source}")


def told(client: httpx.Client, sandbox_id: str, code: str) -> str:
    headers = {"Accept": "application/json"}
    done = client.post(f"/sandboxes/{sandbox_id}/execute", json={"code": code}, headers=headers)
    assert done.status_code == 200, done.text
    text: str = done.json()["stdout"]
    return text


def test_forks_are_sandboxes_of_their_own(door: Server) -> None:
    client = door.client()
    source = new_sandbox(client, metadata={"run": "7"})
    told(client, source, SET)
    answer = client.post(f"/sandboxes/{source}/fork", json={"count": 2})
    assert answer.status_code == 201, answer.text
    forks = answer.json()["forks"]
    assert [(each["error"], each["left_behind"]) for each in forks] == [(None, [])] * 2
    ids = [each["sandbox"]["id"] for each in forks]
    assert len({source, *ids}) == 3
    told(client, ids[0], "value = 1")
    assert [told(client, each, TELL) for each in (source, *ids)] == [
        "41 kept\n", "1 kept\n", "41 kept\n",
    ]  # fmt: skip
    shown = client.get(f"/sandboxes/{ids[0]}").json()
    assert (shown["metadata"], shown["status"]) == ({"run": "7"}, "running")
    for each in (source, *ids):
        assert client.delete(f"/sandboxes/{each}").status_code == 200


def test_snapshot_outlives_its_source(door: Server) -> None:
    client = door.client()
    source = new_sandbox(client)
    told(client, source, SET)
    made = client.post(f"/sandboxes/{source}/snapshots", json={"name": "first"})
    assert made.status_code == 201, made.text
    client.delete(f"/sandboxes/{source}")
    listed = client.get("/snapshots").json()["snapshots"]
    assert [each["name"] for each in listed] == ["first"]
    assert listed[0] == made.json() == client.get("/snapshots/first").json()
    for _ in range(2):
        box = client.post("/snapshots/first/restore", json={})
        assert box.status_code == 201, box.text
        assert told(client, box.json()["id"], TELL) == "41 kept\n"
        client.delete(f"/sandboxes/{box.json()['id']}")
    assert client.delete(f"/snapshots/{made.json()['id']}").status_code == 200
    assert client.get("/snapshots/first").status_code == 404


def test_snapshots_of_others_are_as_if_there_were_none(door: Server) -> None:
    alice, bob = door.client(ALICE), door.client(BOB)
    source = new_sandbox(alice)
    made = alice.post(f"/sandboxes/{source}/snapshots", json={"name": "hers"}).json()
    assert bob.get("/snapshots").json() == {"snapshots": []}
    for wanted in (made["id"], "hers"):
        for answer in (
            bob.get(f"/snapshots/{wanted}"),
            bob.post(f"/snapshots/{wanted}/restore", json={}),
            bob.delete(f"/snapshots/{wanted}"),
        ):
            assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")
    assert alice.get("/snapshots/hers").status_code == 200  # the control: it is there
    alice.delete("/snapshots/hers")


def test_session_that_cannot_be_copied_says_why(door: Server) -> None:
    client = door.client()
    source = new_sandbox(client)
    told(client, source, THREAD)
    refused = client.post(f"/sandboxes/{source}/fork", json={})
    assert (refused.status_code, error_of(refused)["code"]) == (409, "conflict"), refused.text
    assert "threads='drop'" in error_of(refused)["message"]
    assert told(client, source, "print(2)") == "2\n"


def test_threads_are_left_behind_where_asked(door: Server) -> None:
    """By REST, the SDK and the command line; each says which."""
    client = door.client()
    source = new_sandbox(client)
    told(client, source, THREAD)
    left = ["thread 'Thread-1 (wait)' (daemon)"]
    place = f"/sandboxes/{source}"
    forked = client.post(f"{place}/fork", json={"threads": "drop"}).json()["forks"]
    kept = client.post(f"{place}/snapshots", json={"threads": "drop"}).json()
    assert forked[0]["left_behind"] == kept["left_behind"] == left
    wrong = client.post(f"{place}/fork", json={"threads": "keep"})
    assert (wrong.status_code, error_of(wrong)["code"]) == (400, "usage")
    with cellwall.connect(door.address, api_key=ALICE) as remote, remote.attach(source) as same:
        (fork,) = same.fork(threads="drop")
        assert fork.left_behind == same.snapshot(threads="drop").left_behind == tuple(left)
        environ = {**os.environ, "CELLWALL_URL": door.address, "CELLWALL_API_KEY": ALICE}
        for word in ("fork", "snapshot"):
            argv = [*ARGV, "sandbox", word, source, "--drop-threads"]
            done = subprocess.run(argv, capture_output=True, check=True, env=environ, timeout=50)
            assert f"not copied: {left[0]}" in done.stderr.decode()
        for each in remote.snapshots.list():
            remote.snapshots.delete(each.id)


def test_copies_and_snapshots_are_counted() -> None:
    """By the server, for its operator; a tenant sees the number of its own snapshots."""
    with running() as server:
        client = server.client()
        source = new_sandbox(client)
        place = f"/sandboxes/{source}"
        told(client, source, SET)
        assert client.post(f"{place}/fork", json={"count": 2}).status_code == 201
        kept = client.post(f"{place}/snapshots", json={}).json()
        assert client.post(f"/snapshots/{kept['id']}/restore", json={}).status_code == 201
        told(client, source, THREAD)
        assert client.post(f"{place}/fork", json={}).status_code == 409
        stats = server.client(ADMIN).get("/stats").json()["server"]["copies"]
        assert stats == {
            "forks": 2, "restores": 1, "snapshots_made": 1, "snapshots": 1,
            "snapshots_bytes": kept["memory_bytes"] + kept["files_bytes"],
            "hibernations": 0, "wakes": 0, "refused": {"conflict": 1},
        }  # fmt: skip
        assert client.get("/stats").json()["snapshots"] == 1
        assert server.client(BOB).get("/stats").json()["snapshots"] == 0


def _ids(made: dict[str, Any]) -> list[str]:
    """Return the ids in the answer of a fork, of a snapshot, or of a restore."""
    if "forks" in made:
        return [each["sandbox"]["id"] for each in made["forks"]]
    return [made["id"]]


def test_repeated_request_makes_no_second_copy(door: Server) -> None:
    """Its key stands for the first one; another body under it is refused."""
    client = door.client()
    source = new_sandbox(client)
    fork, keep = f"/sandboxes/{source}/fork", f"/sandboxes/{source}/snapshots"
    bodies: dict[str, dict[str, Any]] = {fork: {"count": 2}, keep: {"name": "once"}}
    bodies["/snapshots/once/restore"] = {}
    for number, (place, body) in enumerate(bodies.items()):
        headers = {"Idempotency-Key": f"copies-{number}"}
        first, again = (client.post(place, json=body, headers=headers) for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 201), again.text
        assert _ids(again.json()) == _ids(first.json())
        assert [each.headers.get("idempotent-replay") for each in (first, again)] == [None, "true"]
        other = client.post(place, json={**body, "threads": "x"}, headers=headers)
        assert other.status_code == 400, other.text
    other = client.post(fork, json={"count": 3}, headers={"Idempotency-Key": "copies-0"})
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency")
    assert len(client.get("/snapshots").json()["snapshots"]) == 1
    client.delete("/snapshots/once")
    late = client.post(keep, json=bodies[keep], headers={"Idempotency-Key": "copies-1"})
    assert (late.status_code, error_of(late)["code"]) == (410, "gone")


def test_copies_take_their_places_on_the_server() -> None:
    with running(most_sandboxes=3) as door:
        client = door.client()
        source = new_sandbox(client)
        forks = client.post(f"/sandboxes/{source}/fork", json={"count": 4}).json()["forks"]
        made = [each["sandbox"]["id"] for each in forks if each["sandbox"] is not None]
        assert [each["error"] is None for each in forks] == [True, True, False, False]
        assert forks[-1]["error"]["code"] == "capacity"
        full = client.post(f"/sandboxes/{source}/fork", json={})
        assert (full.status_code, error_of(full)["code"]) == (503, "capacity")
        client.delete(f"/sandboxes/{made[0]}")
        assert client.post(f"/sandboxes/{source}/fork", json={}).status_code == 201


def spoken(door: Server, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `cellwall sandbox`."""
    environ = {**os.environ, "CELLWALL_URL": door.address, "CELLWALL_API_KEY": ALICE}
    argv = [*ARGV, "sandbox", *words]
    done = subprocess.run(argv, capture_output=True, check=False, env=environ, timeout=50)
    text = (done.stdout.decode(), done.stderr.decode())
    return subprocess.CompletedProcess(argv, done.returncode, *text)


def test_command_line_forks_keeps_and_restores(door: Server) -> None:
    client = door.client()
    source = new_sandbox(client)
    told(client, source, SET)
    run = partial(spoken, door)
    forks = run("fork", source, "-n", "2").stdout.split()
    assert [told(client, each, TELL) for each in forks] == ["41 kept\n"] * 2
    child = "import subprocess; p = subprocess.Popen(['sleep', '60'])"
    told(client, source, child)
    made = run("snapshot", source, "--name", "by-words", "--expires", "60")
    assert "not copied: other processes: 1" in made.stderr, made
    listed = json.loads(run("snapshots", "--json").stdout)
    assert [each["id"] for each in listed] == [made.stdout.strip()]
    assert "by-words" in run("snapshots").stdout
    restored = run("restore", "by-words").stdout.strip()
    assert told(client, restored, TELL) == "41 kept\n"
    run("snapshots", "--delete", "by-words")
    assert json.loads(run("snapshots", "--json").stdout) == []
    missing = run("restore", "by-words")
    assert (missing.returncode != 0, "there is none" in missing.stderr) == (True, True)


# -- what copies carry -----------------------------------------------------------------------------

COUNTING = """
import threading, time
beats = [0]
def beat():
    while True:
        beats[0] += 1
        time.sleep(0.01)
threading.Thread(target=beat, daemon=True).start()
"""
BEATS = "before = beats[0]; time.sleep(0.5); print(beats[0] > before)"


def test_jail_says_that_a_copy_is_of_a_session_alone(door: Server) -> None:
    client = door.client()
    source = new_sandbox(client)
    for place in (f"/sandboxes/{source}/fork", f"/sandboxes/{source}/snapshots"):
        refused = client.post(place, json={"scope": "tree"})
        assert error_of(refused)["code"] == "host_unsupported", refused.text
        assert "not the tree of its processes" in error_of(refused)["message"]
        assert "gvisor" in error_of(refused)["remedy"]
        assert client.post(place, json={"scope": "forest"}).status_code == 400
        made = client.post(place, json={"scope": "session"})  # the control
        assert made.status_code == 201, made.text
        (told_of,) = made.json().get("forks", [made.json()])
        assert told_of["carries"] == "session"
    with cellwall.connect(door.address, api_key=ALICE) as sdk:
        for ask in (sdk.attach(source).fork, sdk.attach(source).snapshot):
            with pytest.raises(HostUnsupported, match="not the tree"):
                ask(scope="tree")
    for words in (("fork",), ("snapshot",)):
        done = spoken(door, *words, source, "--tree")
        assert (done.returncode != 0, "not the tree" in done.stderr) == (True, True), done
        assert spoken(door, *words, source).returncode == 0


@pytest.mark.timeout(300)
def test_gvisor_copies_every_process_at_each_door(require: Require) -> None:
    """A thread beats on in copies by HTTP, the SDK and the command line; a jail refuses it."""
    require("gvisor", shutil.which("runsc") is not None, "run: apt-get install runsc")
    with running() as server, cellwall.connect(server.address, api_key=ALICE) as sdk:
        client = server.client()
        source = new_sandbox(client, isolation="kernel", limits={"memory_mb": 256})
        told(client, source, COUNTING)
        answer = client.post(f"/sandboxes/{source}/fork", json={"scope": "tree"})
        assert answer.status_code == 201, answer.text
        (made,) = answer.json()["forks"]
        assert (made["carries"], made["left_behind"]) == ("tree", [])
        kept = client.post(f"/sandboxes/{source}/snapshots", json={"name": "whole"}).json()
        assert kept["carries"] == client.get("/snapshots/whole").json()["carries"] == "tree"
        (fork,) = sdk.attach(source).fork(scope="tree")
        assert fork.carries == "tree"
        assert sdk.snapshots.get("whole").carries == "tree"
        said = spoken(server, "fork", source, "--tree")
        assert said.returncode == 0, said.stderr
        restored = spoken(server, "restore", "whole").stdout.strip()
        copies = (made["sandbox"]["id"], fork.sandbox.id, said.stdout.strip(), restored)
        for each in (source, *copies):
            assert told(client, each, BEATS) == "True\n"
            assert client.delete(f"/sandboxes/{each}").status_code == 200


def test_sdk_has_the_same_calls(door: Server) -> None:
    with cellwall.connect(door.address, api_key=ALICE) as client, client.Sandbox() as source:
        source.run(SET)
        (fork,) = source.fork()
        assert fork.sandbox.run(TELL).stdout == "41 kept\n"
        fork.sandbox.close()
        made = source.snapshot("by-sdk", expires_s=60)
        assert client.snapshots.get("by-sdk") == made
        assert made in client.snapshots.list()
        with client.restore("by-sdk") as later:
            assert later.run(TELL).stdout == "41 kept\n"
        client.snapshots.delete(made.id)
        with pytest.raises(NotFound):
            client.snapshots.get(made.id)
        source.run(THREAD)
        with pytest.raises(Conflict, match="threads"):
            source.fork()


def test_asynchronous_sdk_has_the_same_calls(door: Server) -> None:
    async def main() -> list[Any]:
        async with await cellwall.aconnect(door.address, api_key=ALICE) as client:
            async with client.AsyncSandbox.create() as source:
                await source.run(SET)
                forks = await source.fork(2, reseed=False)
                said = [(await each.sandbox.run(TELL)).stdout for each in forks]
                for each in forks:
                    await each.sandbox.close()
                await source.snapshot("async", expires_s=60)
            async with await client.restore("async") as later:
                said.append((await later.run(TELL)).stdout)
            await client.snapshots.delete("async")
            return said

    assert asyncio.run(main()) == ["41 kept\n"] * 3
