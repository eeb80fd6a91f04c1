"""Sandboxes that a server has taken over are copied as any other (design/0040, 0042)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cellwall.runtimes.jail.stored.fingerprint import TRAITS
from kit.copies.hostile import KEEPS_FILES, LOCKS
from kit.jail.control_groups import control_groups
from kit.server.crashes import House
from kit.server.kept_house import change_record, keeper_of, kept
from kit.servers import Server, error_of, new_sandbox, run_cell
from kit.waiting import is_alive, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

BEGIN = """
import pandas
frame = pandas.DataFrame({'a': range(1000)})
with open('lines.txt', 'w') as made: made.write(''.join(f'line {n}\\n' for n in range(99)))
lines = open('lines.txt'); lines.readline()
def walk():
    state = 7
    while True:
        state = (state * 31 + (yield state)) % 65537
steps = walk(); next(steps)
x = 41
"""
ASK = """
import os
x += 1; frame['a'] += 1
print(x, frame['a'].sum(), lines.readline().strip(), steps.send(x), os.listdir())
"""


def bases_kept(house: House) -> int:
    """Return with how many sandboxes the keeper has a base, as the kernel lists its descriptors."""
    count = 0
    for each in Path(f"/proc/{keeper_of(house)}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is being replaced
            count += "memfd:maps" in os.readlink(each)
    return count


def restarted(house: House, server: Server, kept_ones: int) -> Server:
    """Kill a server once that many sandboxes can be copied afterwards, and start the next."""
    wait_until(lambda: bases_kept(house) == kept_ones, "their bases are kept")
    house.kill(server)
    return house.start()


def forked(client: httpx.Client, path: str, count: int = 1) -> list[str]:
    """Return where the copies of a sandbox are."""
    made = client.post(f"{path}/fork", json={"count": count})
    assert made.status_code == 201, made.text
    return [f"/sandboxes/{each['sandbox']['id']}" for each in made.json()["forks"]]


def test_copies_of_one_that_was_taken_over_go_on_as_it_does(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        client = server.client()
        path = f"/sandboxes/{new_sandbox(client, template='data', env={'MINE': 'its value'})}"
        assert run_cell(client, path, BEGIN)["verdict"] == "ok"
        server = restarted(house, server, 1)
        client = server.client()
        copies = forked(client, path, 2)
        made = client.post(f"{path}/snapshots", json={"name": "kept"})
        assert (made.status_code, made.json()["durable"]) == (201, True)
        restored = client.post("/snapshots/kept/restore", json={}).headers["location"]
        for _ in range(3):
            answers = [run_cell(client, each, ASK)["stdout"] for each in (path, *copies, restored)]
            assert answers == answers[:1] * 4 != [""] * 4
        for each in (path, *copies, restored):
            assert run_cell(client, each, "!echo $MINE")["stdout"] == "its value\n"
            assert commanded(client, each, "echo $MINE") == "its value\n"


def commanded(client: httpx.Client, path: str, line: str) -> str:
    """Run a line of the shell in a sandbox; return what it wrote."""
    said = client.post(
        f"{path}/commands",
        json={"argv": ["sh", "-c", line]},
        headers={"Accept": "application/json"},
    )
    return str(said.json()["stdout"])


def test_generations_of_servers_and_copies_are_all_copied(tmp_path: Path) -> None:
    """A session, its copy, and copies of what was taken over twice."""
    with kept(tmp_path) as house:
        server = house.start()
        client = server.client()
        family = [f"/sandboxes/{new_sandbox(client)}"]
        run_cell(client, family[0], "x = [0]; words = iter('abcdefgh'); next(words)")
        family += forked(client, family[0])
        for generation in (1, 2, 3):
            server = restarted(house, server, len(family))
            client = server.client()
            family += [forked(client, each)[0] for each in (family[0], family[-1])]
            answers = {
                run_cell(client, each, f"x.append({generation}); print(x, next(words))")["stdout"]
                for each in family
            }
            assert len(answers) == 1, answers
            assert answers.pop().startswith(f"{[*range(generation + 1)]} ")
        for each in family:
            assert client.delete(each).status_code == 200
        keeper = keeper_of(house)
        assert server.stop() == 0
        wait_until(lambda: not is_alive(keeper), "the keeper ends with its last sandbox")
        assert control_groups(keeper) == set()


def test_copy_is_confined_as_a_fresh_sandbox_is(tmp_path: Path) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        path = f"/sandboxes/{new_sandbox(server.client())}"
        client = restarted(house, server, 1).client()
        fresh = f"/sandboxes/{new_sandbox(client)}"
        copy, other = (client.get(each).json() for each in (*forked(client, path), fresh))
        for same in ("isolation", "limits", "template", "network"):
            assert copy[same] == other[same]
        mounts = "grep -c . /proc/self/mountinfo; grep -E 'Cap|Seccomp|NoNew|Uid' /proc/self/status"
        assert commanded(client, f"/sandboxes/{copy['id']}", mounts) == commanded(
            client, fresh, mounts
        )


def test_one_without_a_base_is_refused_and_says_what_to_set(tmp_path: Path) -> None:
    """The control: it is what was kept with it that has it copied."""
    with kept(tmp_path) as house:
        server = house.start()
        one, other = (new_sandbox(server.client()) for _ in range(2))
        wait_until(lambda: bases_kept(house) == 2, "their bases are kept")
        house.kill(server)
        change_record(house, one, base=lambda _: None)
        client = house.start().client()
        for way, body in (("fork", {"count": 1}), ("snapshots", {})):
            refused = client.post(f"/sandboxes/{one}/{way}", json=body)
            assert refused.status_code == 409
            assert "an earlier server started this sandbox" in error_of(refused)["message"]
            assert "snapshots_dir" in error_of(refused)["remedy"]
        assert forked(client, f"/sandboxes/{other}")
        assert run_cell(client, f"/sandboxes/{one}", "print(1)")["stdout"] == "1\n"


@pytest.mark.parametrize("trait", ["kernel", "guest", "code"])
def test_one_of_another_machine_or_version_is_refused_with_the_reason(
    tmp_path: Path, trait: str
) -> None:
    with kept(tmp_path) as house:
        server = house.start()
        path = f"/sandboxes/{new_sandbox(server.client())}"
        wait_until(lambda: bases_kept(house) == 1, "its base is kept")
        house.kill(server)
        change_record(house, path.rpartition("/")[2], base=with_another(trait))
        client = house.start().client()
        refused = client.post(f"{path}/fork", json={"count": 1})
        assert refused.status_code == 409
        assert TRAITS[trait].what in error_of(refused)["message"]
        assert run_cell(client, path, "print(1)")["stdout"] == "1\n"


def with_another(trait: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what changes a trait of a base."""
    return lambda base: {**base, "fingerprint": {**base["fingerprint"], trait: "another"}}


@pytest.mark.parametrize("which", [0, 1], ids=["image", "base"])
def test_no_lock_tells_another_copy_anything(tmp_path: Path, which: int) -> None:
    """M09: copies of one that was taken over, before and after the next restart."""
    look = "print(locked(fcntl.LOCK_SH))"
    with kept(tmp_path) as house:
        server = house.start()
        path = f"/sandboxes/{new_sandbox(server.client())}"
        run_cell(server.client(), path, KEEPS_FILES)
        server = restarted(house, server, 1)
        one, two = forked(server.client(), path, 2)
        for _ in range(2):
            client = server.client()
            for each in (one, two):
                assert run_cell(client, each, LOCKS.format(which=which))["verdict"] == "ok"
            before = run_cell(client, two, look)["stdout"]
            assert before.startswith("[")  # the control: it has the file, and tried
            run_cell(client, two, "locked(fcntl.LOCK_UN)")
            assert run_cell(client, one, "locked(fcntl.LOCK_EX)")["verdict"] == "ok"
            assert run_cell(client, two, look)["stdout"] == before
            server = restarted(house, server, 3)


def test_with_a_key_nothing_of_a_session_is_on_the_disk(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(os.urandom(32).hex(), encoding="ascii")
    key.chmod(0o600)
    word = os.urandom(16).hex()
    with kept(tmp_path) as house:
        house.more = f'[engine]\nsnapshots_key_file = "{key}"\n'
        server = house.start()
        path = f"/sandboxes/{new_sandbox(server.client())}"
        run_cell(server.client(), path, f"word = '{word}'")
        server = restarted(house, server, 1)
        client = server.client()
        assert client.post(f"{path}/snapshots", json={"name": "s"}).status_code == 201
        (copy,) = forked(client, path)
        restored = client.post("/snapshots/s/restore", json={}).headers["location"]
        for each in (path, copy, restored):
            assert run_cell(client, each, "print(word)")["stdout"] == f"{word}\n"
        stored = [each for each in (tmp_path / "state").rglob("snapshots/*/*") if each.is_file()]
        assert {each.name for each in stored} >= {"base", "memory"}
        assert not any(word.encode() in each.read_bytes() for each in stored)
