"""A node that ends, hangs or is away: each loss is an answer, and no program runs twice.

The witness is the node's own: a file that each program writes outside would need a way out, so each
prints its number, and what a node had begun is asked of its store after its restart.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from kit.cluster.processes import Cluster, cluster, session_on
from kit.servers import ADMIN, descendants, run_cell, state_of
from kit.waiting import is_alive, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

FENCE_S = 6.0


def test_killed_node_is_an_answer_and_its_sessions_end() -> None:
    with cluster(2, fence_s=FENCE_S) as made:
        alice = made.client()
        first, second = (made.name_of(each) for each in ("node-0", "node-1"))
        lost, kept = session_on(alice, first), session_on(alice, second)
        run_cell(alice, kept, "x = 7")
        made.nodes["node-0"].kill()
        # New work goes to the other at once.
        for _ in range(10):
            answer = alice.post("/execute", json={"code": "print(1)"})
            assert answer.json()["stdout"] == "1\n", answer.text
        assert run_cell(alice, kept, "print(x)")["stdout"] == "7\n"
        refused = alice.get(lost)
        assert refused.status_code in {503, 410}, refused.text
        wait_until(lambda: alice.get(lost).status_code == 410, "the loss is told")
        error = alice.get(lost).json()["error"]
        assert error["code"] == "node_lost"
        assert "the program was not the reason" in error["message"]
        # Every id of that name has this end, so nothing is told of other tenants.
        unknown = alice.get(f"/sandboxes/{first}{'a' * 26}")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (410, "node_lost")
        # Its machine comes back later: it takes another name, and works.
        made.start_node("node-0", FENCE_S)
        made.wait_ready(2)
        assert set(made.states()) > {first, second}
        assert made.states()[first] == "lost"
        assert alice.get(lost).status_code == 410


def test_hung_node_is_ended_by_its_guard_before_its_loss_is_told() -> None:
    with cluster(2, fence_s=FENCE_S) as made:
        alice = made.client()
        first = made.name_of("node-0")
        session = session_on(alice, first)
        run_cell(alice, session, "import subprocess; p = subprocess.Popen(['sleep', '600'])")
        server = made.server_of("node-0")
        below = descendants(server)
        assert len(below) > 3
        os.kill(server, signal.SIGSTOP)
        wait_until(lambda: alice.get(session, timeout=60).status_code == 410, "the loss is told")
        assert not [pid for pid in (server, *below) if is_alive(pid)]
        # The node is there again, under another name.
        made.wait_ready(2)
        assert made.name_of("node-0") != first
        assert made.states()[first] == "lost"


def test_programs_under_way_have_their_end_when_a_node_is_killed() -> None:
    with cluster(2, fence_s=FENCE_S, probe_s=1.0) as made:  # a busy machine misses probes
        alice = made.client()
        first = made.name_of("node-0")
        codes = [f"import time; time.sleep(0.05); print({number})" for number in range(120)]

        def run(code: str) -> httpx.Response:
            return alice.post("/execute", json={"code": code})

        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(run, code) for code in codes]
            answers[20].result()
            made.nodes["node-0"].kill()
            found = [each.result() for each in answers]
        lost = 0
        for number, answer in enumerate(found):
            if answer.status_code == 200 and answer.json()["verdict"] == "ok":
                assert answer.json()["stdout"] == f"{number}\n"
                continue
            assert answer.json()["error"]["code"] == "node_lost", answer.text
            assert first in answer.json()["error"]["message"]
            lost += 1
        assert lost <= 8  # those that were under way there


def test_node_that_restarts_tells_what_it_had_begun() -> None:
    with cluster(1, fence_s=30.0) as made:
        alice = made.client()
        name = made.name_of("node-0")
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(
                alice.post, "/execute", json={"code": "import time; time.sleep(600)"}
            )
            wait_until(lambda: _running(made), "it runs")
            made.nodes["node-0"].kill()
            made.start_node("node-0", 30.0)
            found = answer.result()
        assert (found.status_code, found.json()["error"]["code"]) == (503, "interrupted")
        assert made.name_of("node-0") == name
        answer_after = alice.post("/execute", json={"code": "print(2)"})
        assert answer_after.json()["stdout"] == "2\n"


def test_program_that_waits_on_a_node_that_restarts_goes_on_and_is_not_called_over() -> None:
    with cluster(1, fence_s=30.0, tiers="[tiers.default]\nrunning = 1") as made:
        alice = made.client()
        sleeping = {"code": "import time; time.sleep(600)", "background": True}
        first = alice.post("/execute", json=sleeping).json()["execution_id"]

        def waiting() -> httpx.Response:
            keyed = {"idempotency-key": "once"}
            return alice.post("/execute", json={"code": "print(2)"}, headers=keyed)

        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(waiting)
            wait_until(lambda: _on_disk(made, "node-0") == ["queued", "running"], "it waits")
            made.nodes["node-0"].kill()
            made.start_node("node-0", 30.0)
            found = answer.result()
        assert (found.status_code, found.json()["error"]["code"]) == (503, "node_unreachable")
        assert "goes on" in found.json()["error"]["message"]
        again = waiting()
        assert (again.status_code, again.json().get("stdout")) == (200, "2\n"), again.text
        assert again.headers["idempotent-replay"] == "true"
        # Control: what had begun does not go on.
        assert alice.get(f"/executions/{first}").json()["verdict"] == "interrupted"


def test_what_waited_on_a_node_whose_loss_was_told_never_begins() -> None:
    with cluster(1, fence_s=2.0, tiers="[tiers.default]\nrunning = 1") as made:
        alice, name = made.client(), made.name_of("node-0")
        for code in ("import time; time.sleep(600)", "print(2)"):
            sent = alice.post("/execute", json={"code": code, "background": True})
            assert sent.status_code == 202, sent.text
        wait_until(lambda: _on_disk(made, "node-0") == ["queued", "running"], "it waits")
        made.nodes["node-0"].kill()
        wait_until(lambda: made.states().get(name) == "lost", "the loss is told")
        made.start_node("node-0", 2.0)
        made.wait_ready(1)
        assert _on_disk(made, "node-0") == ["ended", "ended"]
        assert _started(made, "node-0") == 1  # the one that ran before
        alice.post("/execute", json={"code": "print(3)"})  # control: it shows in the store
        wait_until(lambda: _started(made, "node-0") == 2, "what begins is seen")


def _started(made: Cluster, node: str) -> int:
    """Return how many executions in a node's store have begun."""
    path = state_of(made.folder / node) / "server" / "cellwall.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT count(started_at) FROM executions")
        return int(found.fetchone()[0])


def _on_disk(made: Cluster, node: str) -> list[str]:
    """Return the states of a node's executions in its store."""
    path = state_of(made.folder / node) / "server" / "cellwall.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT state FROM executions ORDER BY state")
        return [state for (state,) in found]


def _running(made: Cluster) -> bool:
    return int(made.client(key=ADMIN).get("/nodes").json()["nodes"][0]["in_flight"]) > 0
