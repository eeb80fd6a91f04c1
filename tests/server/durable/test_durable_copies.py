"""Sandboxes that a server has taken over are copied as any other (design/0040, 0042)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from kit.server.crashes import House
from kit.server.kept_house import keeper_of, kept
from kit.servers import Server, new_sandbox, run_cell
from kit.waiting import wait_until

pytestmark = pytest.mark.root

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
x += 1; frame['a'] += 1
print(x, frame['a'].sum(), lines.readline().strip(), steps.send(x), sorted(__import__('os').listdir()))
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
        look = "import subprocess as s; print(s.getoutput('echo $MINE'))"
        command = {"argv": ["sh", "-c", "echo $MINE"]}
        for each in (path, *copies, restored):
            assert run_cell(client, each, look)["stdout"] == "its value\n"
            said = client.post(f"{each}/commands", json=command).json()
            assert said["stdout"] == "its value\n", said
