"""Hibernated sandboxes outlive their server, however it ends, and come back as themselves.

Each is known by what only it holds, a variable and a file; the witness of what is left of one is
the directory of snapshots, which no server can tell anything about.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from cellwall.apps.store_place import open_store
from cellwall.engine.state.snapshot_files import SnapshotFiles
from cellwall.server.auth.stored_keys import create, revoke
from kit.server.crashes import House, house, selected
from kit.server.kept_house import kept
from kit.servers import ADMIN, BOB, error_of, new_sandbox, run_cell, state_of
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(150)]
MANY = 20
SMALL = {"memory_mb": 128}
TELL = "print(globals().get('x'), open('f').read())"


def images(made: House) -> set[str]:
    """What is in the directory of snapshots."""
    place = state_of(made.folder) / "snapshots"
    return {each.name for each in place.iterdir()} if place.exists() else set()


def hibernated(
    client: httpx.Client, word: object = 0, keep: str = "session", **body: object
) -> str:
    """A sandbox that knows a word, and has no processes."""
    sandbox = new_sandbox(client, limits=SMALL, **body)
    code = f"x = {word!r}; _ = open('f', 'w').write(str(x))"
    assert run_cell(client, f"/sandboxes/{sandbox}", code)["verdict"] == "ok"
    done = client.post(f"/sandboxes/{sandbox}/hibernate", json={"keep": keep})
    assert done.status_code == 200, done.text
    return sandbox


def seen(client: httpx.Client, sandbox: str) -> tuple[str, str | None]:
    """Its status, and why it ended."""
    found = client.get(f"/sandboxes/{sandbox}").json()
    return found["status"], found["ended_because"]


def told(client: httpx.Client, sandbox: str) -> str:
    """What it says of itself, which wakes it."""
    done = run_cell(client, f"/sandboxes/{sandbox}", TELL)
    assert done["verdict"] == "ok", done
    return str(done["stdout"])


@pytest.mark.parametrize("keep_sessions", [False, True])
def test_killed_server_leaves_each_as_it_was(tmp_path: Path, keep_sessions: bool) -> None:
    with kept(tmp_path, keep_sessions=keep_sessions) as made:
        server = made.start()
        client = server.client()
        sandboxes = [hibernated(client, number) for number in range(MANY - 1)]
        sandboxes.append(hibernated(client, MANY - 1, keep="files"))
        before = {each: client.get(f"/sandboxes/{each}").json() for each in sandboxes}
        assert {each["hibernated_durable"] for each in before.values()} == {True}
        taken = client.get("/quota").json()["use"]["snapshots_mb"]
        made.kill(server)
        assert images(made) == set(sandboxes)

        server = made.start()
        client = server.client()
        listed = client.get("/sandboxes", params={"state": "hibernated", "limit": 200}).json()
        assert {each["id"] for each in listed["sandboxes"]} == set(sandboxes)
        assert client.get("/snapshots").json()["snapshots"] == []  # they are none
        assert server.client(BOB).get(f"/sandboxes/{sandboxes[0]}").status_code == 404
        stats = server.client(ADMIN).get("/stats").json()["server"]
        assert (stats["hibernated"], stats["pool"]["parked"]) == (MANY, 0)
        use = client.get("/quota").json()["use"]
        assert (use["memory_mb"], use["sandboxes"]) == (0, 0)
        assert abs(use["snapshots_mb"] - taken) <= 1
        same = ("name", "created_at", "limits", "isolation", "template", "hibernated_keeps")
        for each in sandboxes:
            after = client.get(f"/sandboxes/{each}").json()
            assert {name: after[name] for name in same} == {n: before[each][n] for n in same}
        for number, each in enumerate(sandboxes):
            knows = number if number < MANY - 1 else None
            assert told(client, each) == f"{knows} {number}\n"
        wait_until(lambda: not images(made), "no image of one that runs is left")
        assert client.get("/quota").json()["use"]["sandboxes"] == MANY


def test_it_hibernates_again_and_again_over_restarts(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        sandbox = hibernated(client, 1)
        path = f"/sandboxes/{sandbox}"
        for turn in range(3):
            if turn % 2:
                assert server.stop() == 0
            else:
                made.kill(server)
            server = made.start()
            client = server.client()
            assert run_cell(client, path, "x += 1; print(x)")["stdout"] == f"{turn + 2}\n"
            assert client.post(f"{path}/hibernate", json={}).status_code == 200
            assert images(made) == {sandbox}
        assert client.delete(path).status_code == 200
        wait_until(lambda: not images(made), "nothing is left of it")
        assert seen(client, sandbox) == ("stopped", "it was closed")
        made.kill(server)
        client = made.start().client()
        assert seen(client, sandbox) == ("stopped", "it was closed")


def test_one_that_runs_ends_with_its_server(tmp_path: Path) -> None:
    """The control: an image that it had before does not bring it back as it was then."""
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        awake, asleep = hibernated(client, 1), hibernated(client, 2)
        assert told(client, awake) == "1 1\n"
        made.kill(server)
        client = made.start().client()
        assert seen(client, awake) == ("stopped", "its server ended")
        answer = client.post(f"/sandboxes/{awake}/execute", json={"code": "x"})
        assert (answer.status_code, error_of(answer)["code"]) == (410, "sandbox_unavailable")
        assert told(client, asleep) == "2 2\n"


def test_without_its_image_it_has_ended(tmp_path: Path) -> None:
    """The control: it is the image that goes on, not the record."""
    with house(tmp_path) as made:
        server = made.start()
        lost, there = (hibernated(server.client(), each) for each in (1, 2))
        made.kill(server)
        shutil.rmtree(state_of(tmp_path) / "snapshots" / lost)
        client = made.start().client()
        assert seen(client, lost) == ("stopped", "its server ended")
        assert told(client, there) == "2 2\n"


@pytest.mark.parametrize("part", ["memory", "archive", "base", "maps"])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_damaged_part_is_told_and_harms_nothing_else(tmp_path: Path, part: str, how: str) -> None:
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        bad, alone = hibernated(client, 1), hibernated(client, 2, keep="files")
        made.kill(server)
        path = state_of(tmp_path) / "snapshots" / bad / part
        data = path.read_bytes()
        path.unlink()
        if how == "changed":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        client = made.start().client()
        for _ in range(2):
            answer = client.post(f"/sandboxes/{bad}/execute", json={"code": "x"})
            assert (answer.status_code, error_of(answer)["code"]) == (409, "conflict")
            assert f"its {part} " in error_of(answer)["message"]
            assert seen(client, bad) == ("hibernated", None)
        assert told(client, alone) == "None 2\n"
        path.write_bytes(data)  # as of a backup
        assert told(client, bad) == "1 1\n"


def test_damaged_header_ends_it_with_the_reason(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        bad, other = hibernated(client, 1), hibernated(client, 2)
        snapshot = client.post(f"/sandboxes/{other}/snapshots", json={"name": "s"}).json()["id"]
        assert client.post(f"/sandboxes/{other}/hibernate", json={}).status_code == 200
        made.kill(server)
        for each in (bad, snapshot):
            path = state_of(tmp_path) / "snapshots" / each / "header"
            path.write_bytes(path.read_bytes().replace(b'"jail"', b'"liaj"', 1))
        client = made.start().client()
        status, reason = seen(client, bad)
        assert status == "stopped"
        assert reason is not None
        assert reason.startswith("what was stored of it is damaged: ")
        answer = client.post(f"/sandboxes/{bad}/execute", json={"code": "x"})
        assert (answer.status_code, error_of(answer)["code"]) == (410, "sandbox_unavailable")
        assert told(client, other) == "2 2\n"
        wait_until(lambda: images(made) == {snapshot}, "of a snapshot nothing is removed")


def test_header_of_another_tenant_gives_nothing_away(tmp_path: Path) -> None:
    """Where the disk says another owner than the record, doubt destroys."""
    with house(tmp_path) as made:
        server = made.start()
        sandbox, other = (hibernated(server.client(), each) for each in (1, 2))
        made.kill(server)
        files = SnapshotFiles(state_of(tmp_path) / "snapshots", None)
        header = files.header(sandbox)
        assert header is not None
        files.change(replace(header, tenant="bob"))
        server = made.start()
        status, reason = seen(server.client(), sandbox)
        assert (status, reason) == ("stopped", "its record is another tenant's")
        assert server.client(BOB).get(f"/sandboxes/{sandbox}").status_code == 404
        assert told(server.client(), other) == "2 2\n"  # the control


def test_time_goes_on_without_a_server(tmp_path: Path) -> None:
    """The bound of pauses does; the life that it had left stands still."""
    with house(tmp_path) as made:
        made.more = "[engine]\npaused_s = 6\n"
        server = made.start()
        client = server.client()
        over = hibernated(client, 1)
        ends = new_sandbox(client, limits={**SMALL, "life_s": 300})
        made.kill(server)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 6, "its pauses are over")
        client = made.start().client()
        assert seen(client, over) == ("stopped", "it was paused for 6 s")
        assert seen(client, ends) == ("stopped", "its server ended")
        answer = client.post(f"/sandboxes/{over}/resume")
        assert (answer.status_code, error_of(answer)["code"]) == (410, "sandbox_unavailable")
        wait_until(lambda: not images(made), "nothing is left of it")


def test_life_that_was_left_is_left(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        asleep, later = hibernated(client, 1), hibernated(client, 2)
        for each, life_s in ((asleep, 600), (later, 900)):
            changed = client.patch(f"/sandboxes/{each}", json={"life_s": life_s})
            assert changed.status_code == 200, changed.text
        made.kill(server)
        client = made.start().client()
        for each, life_s in ((asleep, 600), (later, 900)):
            text = client.get(f"/sandboxes/{each}").json()["expires_at"]
            at = time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
            assert abs(at - time.time() - life_s) < 5


def test_sealed_ones_need_their_key(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(os.urandom(32).hex(), encoding="ascii")
        (tmp_path / name).chmod(0o600)
    with house(tmp_path) as made:

        def with_key(name: str) -> httpx.Client:
            for each in made.servers:
                made.kill(each)
            made.more = f'[engine]\nsnapshots_key_file = "{tmp_path / name}"\n' if name else ""
            return made.start().client()

        client = with_key("one")
        sandboxes = [
            hibernated(client, "a-secret-word", keep=each) for each in ("session", "files")
        ]
        for each in sandboxes:
            for path in (state_of(tmp_path) / "snapshots" / each).iterdir():
                assert b"a-secret-word" not in path.read_bytes()
        for name, why in (("two", "encrypted with another key"), ("", "this engine has no key")):
            client = with_key(name)
            for each in sandboxes:
                answer = client.post(f"/sandboxes/{each}/resume")
                assert (answer.status_code, error_of(answer)["code"]) == (409, "conflict")
                assert why in error_of(answer)["message"]
                assert seen(client, each) == ("hibernated", None)
                assert client.patch(f"/sandboxes/{each}", json={"life_s": 900}).status_code == 409
        client = with_key("one")
        assert [told(client, each) for each in sandboxes] == [
            "a-secret-word a-secret-word\n",
            "None a-secret-word\n",
        ]
        assert client.post(f"/sandboxes/{sandboxes[0]}/hibernate", json={}).status_code == 200
        assert told(client, sandboxes[0]) == "a-secret-word a-secret-word\n"


def test_tenant_without_a_key_has_none_any_more(tmp_path: Path) -> None:
    async def made_key() -> str:
        store = await open_store(f"sqlite:///{made.database}", sole=False)
        row, key = await create(store, "carol", "run", None, None)
        await store.aclose()
        keys.append(row.digest[:12])
        return key

    async def revoked() -> None:
        store = await open_store(f"sqlite:///{made.database}", sole=False)
        await revoke(store, keys[0])
        await store.aclose()

    keys: list[str] = []
    with house(tmp_path) as made:
        made.kill(made.start())  # the store is there
        key = asyncio.run(made_key())
        server = made.start()
        hers, another = hibernated(server.client(key), 1), hibernated(server.client(), 2)
        made.kill(server)
        server = made.start()
        assert seen(server.client(key), hers) == ("hibernated", None)  # the control
        made.kill(server)
        asyncio.run(revoked())
        server = made.start()
        assert told(server.client(), another) == "2 2\n"
        ((because,),) = selected(
            made.database, f"SELECT ended_because FROM sandboxes WHERE id = '{hers}'"
        )
        assert because == "no key of its tenant is accepted any more"
        wait_until(lambda: not images(made), "nothing is left of it")


def test_processes_that_were_kept_are_the_later_ones(tmp_path: Path) -> None:
    """A server that is killed after a wake, and before the image is removed, leaves both."""
    with kept(tmp_path) as made:
        server = made.start()
        client = server.client()
        sandbox = hibernated(client, 1)
        place = state_of(tmp_path) / "snapshots"
        shutil.copytree(place / sandbox, tmp_path / "before", copy_function=shutil.copy2)
        assert run_cell(client, f"/sandboxes/{sandbox}", "x += 1")["verdict"] == "ok"
        made.kill(server)
        (tmp_path / "before").rename(place / sandbox)
        client = made.start().client()
        assert seen(client, sandbox) == ("running", None)
        assert told(client, sandbox) == "2 1\n"
        wait_until(lambda: not images(made), "the image is removed")


def test_one_without_a_record_is_removed(tmp_path: Path) -> None:
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        closed, there = hibernated(client, 1), hibernated(client, 2)
        place = state_of(tmp_path) / "snapshots"
        shutil.copytree(place / closed, tmp_path / "before", copy_function=shutil.copy2)
        assert client.delete(f"/sandboxes/{closed}").status_code == 200
        wait_until(lambda: images(made) == {there}, "it is gone")
        made.kill(server)
        (tmp_path / "before").rename(place / closed)
        client = made.start().client()
        assert seen(client, closed)[0] == "stopped"
        wait_until(lambda: images(made) == {there}, "it is removed again")


def test_room_and_ceilings_are_those_of_now(tmp_path: Path) -> None:
    """What is refused is told, and stays as it is for a server that allows it."""
    with house(tmp_path) as made:
        server = made.start()
        client = server.client()
        one, two = hibernated(client, 1), hibernated(client, 2)
        big = new_sandbox(client, limits={"memory_mb": 640})
        assert client.post(f"/sandboxes/{big}/hibernate", json={}).status_code == 200
        made.kill(server)
        made.more = "[tiers.default]\nsandboxes = 1\n[most]\nmemory_mb = 600\n"
        server = made.start()
        client = server.client()
        assert told(client, one) == "1 1\n"
        refused = client.post(f"/sandboxes/{two}/resume")
        assert (refused.status_code, error_of(refused)["quota"]) == (429, "sandboxes")
        assert client.delete(f"/sandboxes/{one}").status_code == 200
        above = client.post(f"/sandboxes/{big}/resume")
        assert above.status_code == 400
        assert "memory_mb" in error_of(above)["message"]
        assert told(client, two) == "2 2\n"
        assert client.delete(f"/sandboxes/{two}").status_code == 200
        made.kill(server)
        made.more = ""
        client = made.start().client()
        assert client.post(f"/sandboxes/{big}/resume").json()["status"] == "running"
