"""A node that has become slow gets hardly any new work, and says why.

It is slowed down from outside: all of its processes run for a tenth of the time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellwall.linux.cgroups.hierarchies import Hierarchy, discover
from cellwall.model.ids import node_of
from conftest import Require
from kit.cluster.processes import Cluster, cluster
from kit.servers import ADMIN
from kit.waiting import wait_until

# Alone: what runs beside it slows the two other nodes, which then refuse programs for the third.
pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(240)]

CALLERS = 3
MEASURED_S = 12.0
_PERIOD_S = 0.1


class _Throttle:
    """A control group: what is started inside it can be given a part of the time.

    By freezing it for the rest: a quota of version 1 may not be below those of the sandboxes in it.
    """

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._outside = hierarchy.base
        self._group = hierarchy.base / f"cellwall-test-{os.getpid()}"
        is_v1 = hierarchy.version == 1
        self._file = self._group / ("freezer.state" if is_v1 else "cgroup.freeze")
        self._words = ("THAWED", "FROZEN") if is_v1 else ("0", "1")
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._group.mkdir()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Have what is started in the block be in the group."""
        self._move(self._group)
        try:
            yield
        finally:
            self._move(self._outside)

    def _move(self, group: Path) -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    def begin(self, part: float) -> None:
        """Give all of it so much of the time from now on."""
        self._thread = threading.Thread(target=self._turn, args=(part,))
        self._thread.start()

    def _turn(self, part: float) -> None:
        while not self._is_over.wait(part * _PERIOD_S):
            self._file.write_text(self._words[1])
            self._is_over.wait((1 - part) * _PERIOD_S)
            self._file.write_text(self._words[0])

    def end(self) -> None:
        """Give it all of the time again."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def is_removed(self) -> bool:
        """Remove the group, if all in it has ended."""
        with contextlib.suppress(OSError):
            for folder, _, _ in os.walk(self._group, topdown=False):
                os.rmdir(folder)
            return True
        return False


@pytest.fixture
def throttle(require: Require) -> Iterator[_Throttle]:
    hierarchy = discover().freezing
    require("freezing", hierarchy is not None, "there is no freezer")
    assert hierarchy is not None
    made = _Throttle(hierarchy)
    try:
        yield made
    finally:
        made.end()
        wait_until(made.is_removed, "its processes have ended")


class _Load:
    """Callers that run one program after the other; counts them by node and time."""

    def __init__(self, made: Cluster) -> None:
        self.nodes: list[tuple[float, str]] = []
        self._made = made
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(CALLERS)
        self._all = [self._pool.submit(self._run) for _ in range(CALLERS)]

    def _run(self) -> None:
        client = self._made.client()
        while not self._is_over.is_set():
            began_s = time.monotonic()
            answer = client.post("/execute", json={"code": "print(sum(range(50_000)))"})
            assert answer.status_code == 200, answer.text
            self.nodes.append((began_s, node_of(answer.json()["execution_id"])))

    def end(self) -> None:
        self._is_over.set()
        self._pool.shutdown()
        for each in self._all:
            each.result()

    def since(self, began_s: float) -> Counter[str]:
        """Return how many programs began after that at each node."""
        return Counter(name for at_s, name in self.nodes if at_s >= began_s)


def test_slow_node_gets_at_most_two_in_a_hundred(throttle: _Throttle) -> None:
    with cluster(2, gateways=0) as made:
        with throttle.starting():
            made.start_node("node-2")
        made.start_gateway(probe_s=1.0)
        made.wait_ready(3)
        load = _Load(made)
        try:
            wait_until(lambda: len(load.since(0)) == 3, "all nodes work")
            slow = made.name_of("node-2")
            throttle.begin(0.1)
            began_s = time.monotonic()
            wait_until(lambda: time.monotonic() > began_s + 5, "the gateway has found out")
            shown = _shown(made, "node-2")
            assert shown["state"] in {"slow", "unreachable"}, shown
            assert shown["why"]
            wait_until(lambda: time.monotonic() > began_s + 5 + MEASURED_S, "enough is measured")
            count = load.since(began_s + 5)
            assert count.total() > 100
            assert count[slow] <= 0.02 * count.total(), count
        finally:
            load.end()
            throttle.end()


def _shown(made: Cluster, node: str) -> dict[str, object]:
    shown = made.client(key=ADMIN).get("/nodes").json()["nodes"]
    port = made.ports[node]
    return next(each for each in shown if each.get("address", "").endswith(f":{port}"))
