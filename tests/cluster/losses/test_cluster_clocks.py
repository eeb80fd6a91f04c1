"""A node's and a gateway's clock that is an hour off, from the start or all at once.

Only the time of day is wrong: no machine's other clocks are moved by NTP or an operator. Of two
nodes and two gateways one each is wrong, so every connection has a wrong end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from cellwall.model.ids import new_id, node_of
from conftest import Require
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster, session_on
from kit.postgres_server import Postgres
from kit.servers import run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

FENCE_S = 20.0
SANDBOXES = 5
RUNNING = 2
TIERS = f"[tiers.default]\nsandboxes = {SANDBOXES}\nrunning = {RUNNING}\n"
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
HOUR_S = 3600
WRONG = ("node-0", "gate-0")
_SAYS_WHEN = "import time; a = time.monotonic(); time.sleep(0.3); print(a, time.monotonic())"
_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *now) {
    int (*faked)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    return which == CLOCK_REALTIME ? faked(which, now) : syscall(SYS_clock_gettime, which, now);
}
"""
"""libfaketime also moves the clocks that count the processor time of other processes."""


class Clocks:
    """The clocks of those that are wrong; they see a change within a second."""

    def __init__(self, made: Cluster) -> None:
        self._file = made.folder / "clock"
        self.set(0)
        source, shim = made.folder / "shim.c", made.folder / "shim.so"
        source.write_text(_SHIM, encoding="utf-8")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
        shim.chmod(0o755)
        environ = {
            "LD_PRELOAD": f"{shim}:{LIBRARY}",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
        }
        made.environs.update(dict.fromkeys(WRONG, environ))

    def set(self, off_s: int) -> None:
        """Make them so many seconds too early, or too late if negative."""
        self._file.write_text(f"{off_s:+d}\n", encoding="utf-8")


@pytest.fixture(params=[HOUR_S, -HOUR_S], ids=["ahead", "behind"])
def off_s(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def empty(postgres: Postgres, require: Require) -> Iterator[Cluster]:
    """A cluster before its nodes and gateways start."""
    require("faketime", LIBRARY is not None, "apt-get install libfaketime")
    require("gcc", shutil.which("gcc") is not None, "apt-get install gcc libc6-dev")
    with cluster(0, 0, directory=directory(postgres), tiers=TIERS) as made:
        yield made


def _start(made: Cluster) -> None:
    for number in range(2):
        made.start_node(f"node-{number}", FENCE_S)
    for number in range(2):
        made.start_gateway(FENCE_S, probe_s=2.0)  # a busy machine misses probes
        made.wait_ready(2, number)


def _doctor(made: Cluster, gateway: str) -> list[dict[str, Any]]:
    """Return what it finds where a gateway runs, by that machine's clock."""
    path = made.folder / gateway / "cellwall.toml"
    argv = [sys.executable, "-m", "cellwall.apps.cli.main", "cluster", "doctor", "--json"]
    done = subprocess.run(
        [*argv, "--config", str(path)],
        env={**os.environ, **made.environs.get(gateway, {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _check_doctor(made: Cluster, off_s: int) -> None:
    """Hold each gateway's doctor to tell the node whose clock differs from its own."""
    for gateway, node, ahead_s in (("gate-0", "node-1", -off_s), ("gate-1", "node-0", off_s)):
        wrong = [each for each in _doctor(made, gateway) if each["grade"] != "PASS"]
        assert len(wrong) == 1, wrong
        assert wrong[0]["feature"].endswith(f":{made.ports[node]}"), wrong
        (differs,) = [
            int(word) for word in wrong[0]["detail"].split() if word.lstrip("-").isdigit()
        ]
        assert abs(differs - ahead_s) < 10, wrong
        assert "NTP" in wrong[0]["remedy"]


def _check_programs(made: Cluster) -> None:
    """Hold programs, keys, background work and the quota `running` to be as always."""
    clients = [made.client(0), made.client(1)]
    for client in clients:
        key = {"idempotency-key": new_id()}
        body = {"code": "import os; print(os.urandom(8).hex())"}
        answers = [each.post("/execute", json=body, headers=key) for each in (client, *clients)]
        assert len({each.json()["stdout"] for each in answers}) == 1, [e.text for e in answers]
        sent = client.post("/execute", json={"code": "print(5)", "background": True}).json()
        other = clients[client is clients[0]]
        found = other.get(f"/executions/{sent['execution_id']}", params={"wait": 20}).json()
        assert (found["verdict"], found["stdout"]) == ("ok", "5\n"), json.dumps(found)
    with ThreadPoolExecutor(8) as pool:
        program = {"code": _SAYS_WHEN}
        answers = list(pool.map(lambda n: clients[n % 2].post("/execute", json=program), range(8)))
    assert {each.status_code for each in answers} == {200}
    spans = [tuple(map(float, each.json()["stdout"].split())) for each in answers]
    assert 0 < max(_under_way(spans, began_s) for began_s, _ in spans) <= RUNNING


def _under_way(spans: list[tuple[float, ...]], at_s: float) -> int:
    """Return how many programs ran at a time of the machine's own clock.

    What two nodes say one after the other would count a program that went on and its successor.
    """
    return sum(began_s <= at_s < ended_s for began_s, ended_s in spans)


def _check_lives(made: Cluster) -> None:
    """Hold a life to last as long as it was given, on the node whose clock is wrong."""
    client = made.client(1)
    path = session_on(client, made.name_of("node-0"))
    began_s = time.monotonic()
    assert client.patch(path, json={"life_s": 4}).status_code == 200
    assert client.get(path).json()["status"] == "running"
    wait_until(lambda: client.get(path).json().get("status") == "stopped", "its life is over")
    assert 3.9 < time.monotonic() - began_s < 12


def _check_signatures(made: Cluster, session: str) -> None:
    """Hold a signed address to be valid at once at every gateway, and no longer than it says."""
    serve = "import subprocess; subprocess.Popen(['python3', '-m', 'http.server', '8000'])"
    run_cell(made.client(0), session, f"open('hello.txt', 'w').write('inside'); {serve}")
    inside = f"{session}/ports/8000/hello.txt"
    wait_until(lambda: made.client(0).get(inside).status_code == 200, "it listens")
    strangers = [made.client(each, key=None) for each in (0, 1)]
    for gateway in (0, 1):
        wanted = {"port": 8000, "expires_s": 5}
        token = made.client(gateway).post(f"{session}/ports/sign", json=wanted).json()["token"]
        began_s = time.monotonic()
        assert [_opened(each, inside, token) for each in strangers] == [200, 200]
        while (status := _opened(strangers[gateway], inside, token)) == 200:
            assert time.monotonic() - began_s < 20
        assert (status, time.monotonic() - began_s > 4.5) == (404, True)


def _opened(stranger: httpx.Client, inside: str, token: str) -> int:
    return stranger.get(inside, params={"cellwall_token": token}).status_code


def _check_quota(made: Cluster, sessions: list[str]) -> None:
    """Hold the quota `sandboxes` to be what it is, with those that live."""
    clients = [made.client(0), made.client(1)]
    made_now: list[str] = []
    while len(made_now) + len(sessions) < SANDBOXES:
        answer = clients[len(made_now) % 2].post("/sandboxes", json={})
        assert answer.status_code == 201, answer.text
        made_now.append(answer.json()["id"])
    for client in clients:
        refused = client.post("/sandboxes", json={})
        assert (refused.status_code, refused.json()["error"]["quota"]) == (429, "sandboxes")
    for each in made_now:
        assert clients[0].delete(f"/sandboxes/{each}").status_code == 200


def _check_all(made: Cluster, off_s: int, sessions: list[str]) -> None:
    _check_programs(made)
    _check_lives(made)
    _check_signatures(made, sessions[0])
    _check_quota(made, sessions)
    _check_doctor(made, off_s)
    for number, each in enumerate(sessions):
        for gateway in (0, 1):
            assert run_cell(made.client(gateway), each, "print(x)")["stdout"] == f"{number}\n"


def _sessions(made: Cluster) -> list[str]:
    """Return one at each node, the wrong one first."""
    client = made.client(1)
    found = [session_on(client, made.name_of(each)) for each in ("node-0", "node-1")]
    for number, each in enumerate(found):
        run_cell(client, each, f"x = {number}")
    return found


def test_clock_that_is_an_hour_off_breaks_nothing(empty: Cluster, off_s: int) -> None:
    Clocks(empty).set(off_s)
    _start(empty)
    began_s, states = time.monotonic(), empty.states(0)
    sessions = _sessions(empty)
    _check_all(empty, off_s, sessions)
    wait_until(lambda: time.monotonic() - began_s > FENCE_S + 4, "longer than a fence")
    assert empty.states(0) == empty.states(1) == states
    # A restart finds what was left, by a clock that is still wrong.
    name = node_of(sessions[0].rpartition("/")[2])
    empty.nodes["node-0"].kill()
    empty.start_node("node-0", FENCE_S)
    for gateway in (0, 1):
        empty.wait_ready(2, gateway)
    assert empty.name_of("node-0") == name
    _check_programs(empty)


def test_clock_that_jumps_by_an_hour_breaks_nothing(empty: Cluster, off_s: int) -> None:
    clocks = Clocks(empty)
    _start(empty)
    sessions, states = _sessions(empty), empty.states(0)
    began_s = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        under_way = [
            pool.submit(
                empty.client(gateway).post,
                "/execute",
                json={"code": "import time; time.sleep(3); print(7)"},
            )
            for gateway in (0, 1)
        ]
        clocks.set(off_s)
        assert [each.result().json().get("stdout") for each in under_way] == ["7\n"] * 2
    _check_all(empty, off_s, sessions)
    clocks.set(0)
    _check_programs(empty)
    wait_until(lambda: time.monotonic() - began_s > FENCE_S + 4, "longer than a fence")
    assert empty.states(0) == empty.states(1) == states
