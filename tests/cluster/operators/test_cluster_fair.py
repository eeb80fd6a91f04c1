"""Tenants take turns at a gateway, and what waits there is bounded and can leave."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from kit.cluster.processes import Cluster, cluster
from kit.servers import ADMIN, BOB
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

WINDOW = 2 * len(os.sched_getaffinity(0))
TIERS = '[tiers.small]\nqueued = 4\n[tenants]\nbob = "small"'
CROWD = int(os.environ.get("CELLWALL_TEST_CROWD", "3000"))
"""Programs of one tenant that are asked for before another's."""
WORK = {"code": "x = sum(range(300_000)); print(x)"}


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with cluster(1, gateways=0) as made:
        made.nodes["node-0"].stop()
        made.start_node("node-0", more=TIERS)
        made.start_gateway(more=TIERS, probe_s=2.0)  # it is busy, not away
        made.wait_ready(1)
        yield made


def _queued(made: Cluster) -> int:
    return int(made.client(key=ADMIN).get("/nodes").json()["queued"])


class _Crowd:
    """Many programs of one tenant, by batches and one by one."""

    def __init__(self, made: Cluster, singles: int, batched: int) -> None:
        self.done = 0
        self._lock = threading.Lock()
        self._is_over = False
        self._made = made
        self._pool = ThreadPoolExecutor(singles + 1)
        self._all = [self._pool.submit(self._single) for _ in range(singles)]
        self._all.append(self._pool.submit(self._batch, batched))

    def _single(self) -> None:
        with httpx.Client(
            base_url=self._made.client().base_url, headers=self._made.client().headers, timeout=60
        ) as client:
            while not self._is_over:
                answer = client.post("/execute", json=WORK)
                assert answer.status_code == 200, answer.text
                self._count()

    def _batch(self, batched: int) -> None:
        body = {"executions": [WORK] * batched, "concurrency": 64}
        with self._made.client().stream("POST", "/executions/batch", json=body) as answer:
            for line in answer.iter_lines():
                if '"index"' in line:
                    self._count()
                if self._is_over:
                    return

    def _count(self) -> None:
        with self._lock:
            self.done += 1

    def end(self) -> None:
        self._is_over = True
        self._pool.shutdown()
        for each in self._all:
            each.result()


def test_one_program_is_next_behind_another_tenants_thousands(one: Cluster) -> None:
    bob = one.client(key=BOB)
    crowd = _Crowd(one, singles=32, batched=CROWD)
    try:
        wait_until(lambda: crowd.done > 2 * WINDOW and _queued(one) > 64, "many wait")
        for _ in range(3):
            before = crowd.done
            answer = bob.post("/execute", json=WORK)
            assert answer.status_code == 200, answer.text
            # It waited for one to end, and ran while those of the window did; some had ended
            # before, and their clients read that late. More than 64 would have been first.
            assert crowd.done - before <= min(8 * WINDOW, 60)
    finally:
        crowd.end()


def test_more_than_the_quota_is_refused_and_one_that_leaves_makes_room(one: Cluster) -> None:
    program = {"code": "import time; time.sleep(0.9)"}  # it is young to its end
    bob = one.client(key=BOB)
    with ThreadPoolExecutor(WINDOW + 4) as pool:
        kept = [pool.submit(bob.post, "/execute", json=program) for _ in range(WINDOW + 4)]
        wait_until(lambda: _queued(one) == 4, "its queue is full")
        refused = bob.post("/execute", json=program)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota")
        assert all(each.result().status_code == 200 for each in kept)


def test_client_that_leaves_waits_no_longer(one: Cluster) -> None:
    alice = one.client()
    program = {"code": "import time; time.sleep(0.9)"}
    with ThreadPoolExecutor(WINDOW) as pool:
        kept = [pool.submit(alice.post, "/execute", json=program) for _ in range(WINDOW)]
        wait_until(lambda: _in_flight(one) == WINDOW, "the window is full")
        with pytest.raises(httpx.ReadTimeout):
            alice.post("/execute", json={"code": "print(7)"}, timeout=0.2)
        wait_until(lambda: _queued(one) == 0, "it waits no longer")
        assert all(each.result().status_code == 200 for each in kept)


def _in_flight(made: Cluster) -> int:
    return int(made.client(key=ADMIN).get("/nodes").json()["nodes"][0]["in_flight"])


def test_programs_that_last_keep_out_no_others(one: Cluster) -> None:
    alice = one.client()
    program = {"code": "import time; time.sleep(4)"}
    with ThreadPoolExecutor(3 * WINDOW) as pool:
        kept = [pool.submit(alice.post, "/execute", json=program) for _ in range(3 * WINDOW)]
        wait_until(lambda: _in_flight(one) == 3 * WINDOW, "all of them run")
        assert one.client(key=BOB).post("/execute", json={"code": "1"}).status_code == 200
        assert not any(each.done() for each in kept)
        assert all(each.result().status_code == 200 for each in kept)
