"""I16: many programs, each just under its limit, together more than the machine. API-27.

The machine is what the settings say it is. The witness is the host's own view: how many processes
below the server hold that much memory at the same time.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest

from kit.servers import ADMIN, Server, descendants, error_of, running

MEMORY_MB, LIMIT_MB, MACHINE_MB, COUNT = 128, 160, 400, 6
LIMITS = {"memory_mb": LIMIT_MB, "disk_mb": 16}
GREEDY = f"""
import time
held = bytearray({MEMORY_MB} << 20)
for page in range(0, len(held), 4096):
    held[page] = 1
time.sleep(3)
print(sum(held) == len(held) // 4096)
"""


def big_processes(server: Server) -> int:
    """Return how many processes below the server hold what one greedy program does."""
    found = 0
    for pid in descendants(server.process.pid):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, ValueError):
            continue
        found += pages * 4096 >= MEMORY_MB << 20
    return found


def most_at_once(server: Server) -> tuple[int, list[httpx.Response]]:
    """Send all of them at once; return the witness's highest count, and their answers."""
    answers: list[httpx.Response] = []

    def send() -> None:
        body = {"code": GREEDY, "limits": LIMITS}
        answers.append(server.client().post("/execute", json=body))

    threads = [threading.Thread(target=send) for _ in range(COUNT)]
    for each in threads:
        each.start()
    most = 0
    while any(each.is_alive() for each in threads):
        most = max(most, big_processes(server))
        time.sleep(0.02)
    return most, answers


@pytest.mark.attack
@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "control"])
def test_programs_beyond_the_machine_are_held_back(is_guarded: bool) -> None:
    capacity = MACHINE_MB if is_guarded else 10**9
    with running(capacity_memory_mb=capacity) as server:
        most, answers = most_at_once(server)
        # All of them did run, and held what they said.
        assert [each.json()["stdout"] for each in answers] == ["True\n"] * COUNT
        allowed = MACHINE_MB // LIMIT_MB
        if is_guarded:
            assert 1 <= most <= allowed
        else:
            assert most > allowed  # the attack works where nothing holds it back
        promises = server.client(ADMIN).get("/stats").json()["server"]["promises"]
        assert promises["memory_mb"] == 0


@pytest.mark.attack
@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "control"])
def test_sandboxes_beyond_the_machine_are_refused(is_guarded: bool) -> None:
    factor = 1.0 if is_guarded else 32.0
    with running(capacity_memory_mb=MACHINE_MB, overcommit_memory=factor) as server:
        client = server.client()
        answers = [client.post("/sandboxes", json={"limits": LIMITS}) for _ in range(COUNT)]
        made = [each for each in answers if each.status_code == 201]
        assert len(made) == (MACHINE_MB // LIMIT_MB if is_guarded else COUNT)
        for each in answers:
            if each.status_code != 201:
                assert (each.status_code, error_of(each)["code"]) == (503, "capacity")
        assert len(client.get("/sandboxes").json()["sandboxes"]) == len(made)
        promises = server.client(ADMIN).get("/stats").json()["server"]["promises"]
        assert promises["memory_mb"] <= MACHINE_MB
