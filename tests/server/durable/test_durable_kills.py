"""Sessions that live through one `kill -9` of their server after another, under load (design/0040).

Each session has its number, a file, and a count that every check adds to: a session that was lost,
made anew, or taken over twice would say another count. CELLWALL_TEST_KEPT and CELLWALL_TEST_KILLS
say how many sessions and kills: CI has 12 and 3 of the 100 and 50. How long nothing listens is
printed, beside what a server takes that has none to take over.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kit.arena import descendants
from kit.server.crashes import House
from kit.server.kept_house import keeper_of, kept, load
from kit.servers import Server, new_sandbox, run_cell
from kit.waiting import is_alive, wait_until

SESSIONS = int(os.environ.get("CELLWALL_TEST_KEPT", "12"))
KILLS = int(os.environ.get("CELLWALL_TEST_KILLS", "3"))
BUSY = 8
"""Sessions in which cells, uploads and commands run when the server is killed."""
PAUSED = 3
"""Sessions that are paused when the server is killed."""
LIMITS = {"memory_mb": 96, "processes": 30}
BEGIN = "x = {0}; n = 0; open('f', 'w').write('{0}'); held = open('f')"
ASK = "n += 1; held.seek(0); print(x, n, held.read())"
pytestmark = [pytest.mark.root, pytest.mark.timeout(120 + SESSIONS * KILLS)]


def _begun(server: Server) -> list[str]:
    client = server.client()
    made = [new_sandbox(client, limits=LIMITS) for _ in range(SESSIONS)]
    for number, sandbox in enumerate(made):
        assert run_cell(client, f"/sandboxes/{sandbox}", BEGIN.format(number))["verdict"] == "ok"
    return made


def _check(client: httpx.Client, sandboxes: list[str], turn: int) -> None:
    """Each is listed once, and goes on where it was."""
    listed = client.get("/sandboxes", params={"state": "live", "limit": 200}).json()["sandboxes"]
    assert sorted(each["id"] for each in listed) == sorted(sandboxes)
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda each: run_cell(client, f"/sandboxes/{each}", ASK), sandboxes))
    assert [each["stdout"] for each in said] == [f"{n} {turn} {n}\n" for n in range(SESSIONS)]


def _killed(house: House, server: Server, sandboxes: list[str], moment_s: float) -> None:
    """Kill a server at work, with some sessions busy and some paused."""
    client = server.client()
    for each in sandboxes[-PAUSED:]:
        assert client.post(f"/sandboxes/{each}/pause").status_code == 200
    with load(server, sandboxes[:BUSY]):
        time.sleep(moment_s)
        house.kill(server)


def _started(house: House) -> tuple[Server, float]:
    """Start a server; return it, and the seconds until it answered."""
    began = time.monotonic()
    server = house.start()
    assert server.client().get("/sandboxes", params={"limit": 1}).status_code == 200
    return server, time.monotonic() - began


def _alone(folder: Path) -> list[float]:
    """How long servers take that have nothing to take over."""
    folder.mkdir()
    took = []
    with kept(folder) as house:
        for _ in range(5):
            server, seconds = _started(house)
            took.append(seconds)
            house.kill(server)
    return took


def test_sessions_live_through_kill_after_kill(tmp_path: Path) -> None:
    moments, alone, took = random.Random(40), _alone(tmp_path / "none"), []
    (tmp_path / "all").mkdir()
    with kept(tmp_path / "all") as house:
        server = house.start()
        sandboxes = _begun(server)
        for turn in range(1, KILLS + 1):
            _killed(house, server, sandboxes, moments.uniform(0.02, 1.5))
            server, seconds = _started(house)
            took.append(seconds)
            _check(server.client(), sandboxes, turn)
        below = descendants(keeper_of(house)) | descendants(server.process.pid)
        client = server.client()
        for each in sandboxes:
            assert client.delete(f"/sandboxes/{each}").status_code in {200, 204}
        assert client.get("/sandboxes", params={"state": "live"}).json()["sandboxes"] == []
        house.kill(server)
    wait_until(lambda: not any(map(is_alive, below)), "nothing of it is left")
    print(f"{SESSIONS} sessions, {KILLS} kills; until it answers: {_words(took)}")
    print(f"without a session: {_words(alone)}")


def _words(seconds: list[float]) -> str:
    middle, most = statistics.median(seconds), max(seconds)
    return f"median {middle:.2f}, least {min(seconds):.2f}, most {most:.2f} s"
