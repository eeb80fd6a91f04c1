"""A crowd of paused sessions: no CPU time, and nothing that looks at them wakes one.

Each was in the middle of something when it was paused. The witness is the kernel: the processes are
those of the frozen cgroups, their time that of /proc/PID/stat, and the server's own is told apart.
CELLWALL_TEST_PAUSED says how many, CELLWALL_TEST_PAUSED_S for how long: CI has 16 for 2 s, of the
500 for a minute.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from pathlib import Path

import httpx
import pytest

from cellwall.linux.cgroups import hierarchies
from conftest import Require
from kit.arena import descendants
from kit.servers import ADMIN, Server, metrics_address, new_sandbox, run_cell, running
from kit.waiting import wait_until

PAUSED = int(os.environ.get("CELLWALL_TEST_PAUSED", "16"))
SECONDS = float(os.environ.get("CELLWALL_TEST_PAUSED_S", "2"))
LIMITS = {"memory_mb": 64, "processes": 20}
BUSY = """
import threading, time
x, beats = {0}, 0
def beat():
    global beats
    while True:
        beats += 1
        time.sleep(0.001)
threading.Thread(target=beat, daemon=True).start()
"""
pytestmark = [pytest.mark.root, pytest.mark.timeout(120 + PAUSED + 2 * int(SECONDS))]


def _frozen(server: Server) -> set[int]:
    """The processes in the freezers of a server's sandboxes."""
    place = hierarchies.discover().freezing
    assert place is not None
    groups = place.base.glob(f"cellwall.*-{server.process.pid}-*/frozen*/cgroup.procs")
    return {int(word) for path in groups for word in path.read_text().split()}


def _cpu_s(pids: set[int]) -> float:
    """CPU time of processes, in user and kernel mode."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _pss_mib(pids: set[int]) -> float:
    lines = [
        line
        for pid in pids
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss:")
    ]
    return sum(int(line.split()[1]) for line in lines) / 1024


def _begun(client: httpx.Client) -> tuple[list[str], list[float]]:
    """Make sessions that are at work, and pause each; return them and the seconds of each pause."""
    made, took = [], []
    for number in range(PAUSED):
        sandbox = new_sandbox(client, limits=LIMITS)
        assert run_cell(client, f"/sandboxes/{sandbox}", BUSY.format(number))["verdict"] == "ok"
        began = time.perf_counter()
        assert client.post(f"/sandboxes/{sandbox}/pause").status_code == 200
        took.append(time.perf_counter() - began)
        made.append(sandbox)
    return made, took


def _observe(server: Server, sandboxes: list[str]) -> None:
    """Look at everything in each way that there is."""
    client, admin = server.client(), server.client(ADMIN)
    for each in sandboxes:
        for what in ("", "/metrics", "/logs", "/contexts", "/commands", "/checkpoints"):
            assert client.get(f"/sandboxes/{each}{what}").status_code in {200, 404}, what
    for path in ("/sandboxes", "/snapshots", "/quota", "/health"):
        assert client.get(path).status_code == 200, path
    assert admin.get("/stats").status_code == 200
    scraped = httpx.get(metrics_address(server)).text
    (paused,) = re.findall(r"^cellwall_sandboxes_paused (\S+)$", scraped, re.MULTILINE)
    assert float(paused) == PAUSED
    listed = client.get("/sandboxes", params={"state": "paused", "limit": 1}).json()
    assert len(listed["sandboxes"]) == 1


def _resumed(client: httpx.Client, sandboxes: list[str]) -> list[float]:
    """Run a cell in each; return the seconds of each."""
    took = []
    for number, each in enumerate(sandboxes):
        began = time.perf_counter()
        said = run_cell(client, f"/sandboxes/{each}", "print(x, beats > 0)")["stdout"]
        took.append(time.perf_counter() - began)
        assert said == f"{number} True\n"
        if number == 0:  # the control: those that are not paused use CPU time
            before = run_cell(client, f"/sandboxes/{each}", "print(beats)")["stdout"]
            time.sleep(0.1)
            assert run_cell(client, f"/sandboxes/{each}", "print(beats)")["stdout"] != before
        assert client.delete(f"/sandboxes/{each}").status_code in {200, 204}
    return took


def test_paused_crowd_uses_no_cpu_time_and_sleeps_on(require: Require) -> None:
    place = hierarchies.discover().freezing
    require("freezer of cgroup v2", place is not None and place.version == 2, "mount a cgroup2")
    with running(warm=[], metrics_port=0) as server:
        sandboxes, pauses = _begun(server.client())
        frozen = _frozen(server)
        assert len(frozen) >= 2 * PAUSED
        others = {server.process.pid, *descendants(server.process.pid)} - frozen
        before, own = _cpu_s(frozen), _cpu_s(others)
        time.sleep(SECONDS)  # what must not happen has no event
        own_s = _cpu_s(others) - own
        assert _cpu_s(frozen) == before
        _observe(server, sandboxes)
        assert _frozen(server) == frozen
        assert _cpu_s(frozen) == before
        memory = _pss_mib(frozen) / PAUSED
        cells = _resumed(server.client(), sandboxes)
        wait_until(lambda: not _frozen(server), "they have ended")
    print(f"{PAUSED} paused for {SECONDS:g} s: CPU 0 s, of the server and its processes")
    print(f"  {own_s:.2f} s ({own_s / SECONDS:.2%}); {memory:.1f} MiB each")
    print(f"first pause {_words(pauses)}; resume and cell {_words(cells)}")
    assert own_s < 0.5 + 0.02 * SECONDS


def _words(seconds: list[float]) -> str:
    return f"p50 {1e3 * statistics.median(seconds):.1f} ms, most {1e3 * max(seconds):.1f} ms"
