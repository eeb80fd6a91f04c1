"""Nodes on machines of their own: cables that are out, packets that are dropped one way, hangs.

Every program has its true end or is `node_lost`, and none begins twice. The witness of that are the
nodes' own stores, by the id of the request, when everything is over.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import pytest

from conftest import Require
from kit.cluster.machines import machines
from kit.cluster.processes import Cluster, cluster
from kit.servers import ADMIN, descendants, run_cell, state_of
from kit.waiting import is_alive, wait_until

FENCE_S = 6.0
TOLD_S = 15.0
"""Seconds after which the loss of a node that is cut off is final."""
PROGRAMS = int(os.environ.get("CELLWALL_TEST_PROGRAMS", "150"))

CLIENTS = 8

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(240 + PROGRAMS // 10)]


@pytest.fixture
def three(require: Require) -> Iterator[Cluster]:
    for command, package in (("nsenter", "util-linux"), ("ip", "iproute2"), ("nft", "nftables")):
        require(command, shutil.which(command) is not None, f"apt-get install {package}")
    with machines() as made, cluster(3, machines=made, fence_s=FENCE_S) as spread:
        yield spread


@dataclass
class Run:
    """Programs under way, and what became of them."""

    made: Cluster
    victim: str
    """The node to which something is done."""
    begun: list[int] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    told_s: list[float] = field(default_factory=list)
    """When each loss was told, in seconds after it was done."""
    alive: list[int] = field(default_factory=list)
    """Processes of the victim's sandboxes that were alive when the first loss was told."""
    below: set[int] = field(default_factory=set)
    done_s: float = 0.0

    def program(self, number: int, client: httpx.Client) -> None:
        answer = client.post(
            "/execute",
            json={"code": f"import time; time.sleep(0.05); print({number})"},
            headers={"x-request-id": f"program-{number}"},
        )
        if answer.status_code == 200:
            assert answer.json()["stdout"] == f"{number}\n", answer.text
            self.ends["ok"] += 1
            return
        code = answer.json()["error"]["code"]
        self.ends[code] += 1
        if code == "node_lost":
            self.told_s.append(time.monotonic() - self.done_s)
            self.alive += [pid for pid in self.below if is_alive(pid)]

    def all(self, trouble: Callable[[], None]) -> None:
        client = self.made.client()
        with ThreadPoolExecutor(CLIENTS) as pool:
            waiting = [pool.submit(self.program, n, client) for n in range(PROGRAMS)]
            waiting[PROGRAMS // 3].result()
            self.below = descendants(self.made.nodes[self.victim].popen.pid)
            self.done_s = time.monotonic()
            trouble()
            for each in waiting:
                each.result()


def _begun(made: Cluster) -> Counter[str]:
    """Return how often each request began, by the stores of all nodes, which have ended."""
    found: Counter[str] = Counter()
    for name in made.nodes:
        path = state_of(made.folder / name) / "server" / "cellwall.db"
        with contextlib.closing(sqlite3.connect(path)) as opened:
            rows = opened.execute("SELECT request_id FROM executions WHERE started_at IS NOT NULL")
            found.update(str(row[0]) for row in rows)
    return found


def _check(run: Run) -> None:
    """Hold every program to have one end, and to have begun once at most."""
    assert run.ends.total() == PROGRAMS, run.ends
    assert set(run.ends) <= {"ok", "node_lost", "interrupted"}, run.ends
    assert run.ends["ok"] >= PROGRAMS - CLIENTS, run.ends
    assert not run.alive
    assert not run.told_s or max(run.told_s) < TOLD_S, run.told_s


def _check_stores(run: Run) -> None:
    run.made.stop()
    begun = _begun(run.made)
    assert begun.total() >= run.ends["ok"], (begun.total(), run.ends)
    assert [each for each, times in begun.items() if times > 1] == []
    told_s = max(run.told_s, default=0.0)
    print(f"{dict(run.ends)}, {begun.total()} begun, none twice, told within {told_s:.1f} s")


@pytest.mark.parametrize("direction", ["cable", "output", "input"])
def test_node_that_is_cut_off_ends_and_its_loss_is_told(three: Cluster, direction: str) -> None:
    """`output`: its answers reach no gateway; `input`: it hears none."""
    assert three.machines is not None
    machine = three.machines.of("node-1")

    def cut() -> None:
        if direction == "cable":
            machine.unplug()
        else:
            machine.drop(direction)

    run = Run(three, "node-1")
    run.all(cut)
    _check(run)
    assert len(run.below) > 3
    wait_until(lambda: not any(map(is_alive, run.below)), "the fence")
    if direction == "cable":
        machine.plug_in()
    else:
        machine.drop_nothing()
    three.wait_ready(3)  # it is back under another name
    assert sorted(three.states().values()) == ["lost", "ready", "ready", "ready"]
    _check_stores(run)


def test_node_that_is_back_in_time_goes_on(three: Cluster) -> None:
    """Calls to it are held meanwhile, and sessions keep their state."""
    assert three.machines is not None
    machine, client = three.machines.of("node-1"), three.client()
    names = {address: name for name, address in _addresses(three).items()}
    name = names[machine.address]
    path = ""
    while not path.startswith(f"/sandboxes/{name}"):
        path = f"/sandboxes/{client.post('/sandboxes', json={}).json()['id']}"
    run_cell(client, path, "x = 7")
    with ThreadPoolExecutor(1) as pool:
        cell = pool.submit(run_cell, client, path, "import time; time.sleep(3); print(x)")
        wait_until(lambda: _in_flight(three, name), "the cell is under way")
        machine.unplug()
        wait_until(lambda: three.states()[name] == "unreachable", "two probes are missed")
        refused = client.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "node_unreachable")
        assert "retry-after" in refused.headers
        machine.plug_in()
        assert cell.result()["stdout"] == "7\n"
    wait_until(lambda: three.states()[name] == "ready", "it is back")
    assert run_cell(client, path, "print(x)")["stdout"] == "7\n"


def test_node_that_stands_still_ends_and_its_loss_is_told(three: Cluster) -> None:
    run = Run(three, "node-1")
    server = three.server_of("node-1")
    run.all(lambda: os.kill(server, signal.SIGSTOP))
    _check(run)
    assert not is_alive(server)
    _check_stores(run)


def test_machine_that_stands_still_ends_when_it_goes_on(three: Cluster) -> None:
    """The guard stands still, too: its clock tells it afterwards that its time is over."""
    run = Run(three, "node-1")
    guard, server = three.nodes["node-1"].popen.pid, three.server_of("node-1")

    def stop() -> None:
        run.below = set()  # what stands still is alive, and does nothing
        for pid in (guard, server, *descendants(server)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    run.all(stop)
    _check(run)
    below = descendants(server)
    for pid in (guard, server, *below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not any(map(is_alive, (server, *below))), "the fence")
    three.wait_ready(3)
    _check_stores(run)


@pytest.mark.parametrize("whole", [False, True], ids=["server", "everything"])
def test_killed_node_is_told_and_the_rest_goes_on(three: Cluster, whole: bool) -> None:
    run = Run(three, "node-1")

    def kill() -> None:
        run.below = set()
        if whole:
            three.nodes["node-1"].kill()
        else:
            os.kill(three.server_of("node-1"), signal.SIGKILL)

    run.all(kill)
    _check(run)
    three.nodes["node-1"].stop()
    three.start_node("node-1", FENCE_S)
    three.wait_ready(3)
    _check_stores(run)


def _addresses(made: Cluster) -> dict[str, str]:
    shown = made.client(key=ADMIN).get("/nodes").json()["nodes"]
    return {each["name"]: each["address"].rpartition(":")[0] for each in shown if each["name"]}


def _in_flight(made: Cluster, name: str) -> bool:
    shown = made.client(key=ADMIN).get("/nodes").json()["nodes"]
    return any(each["in_flight"] for each in shown if each["name"] == name)
