"""A gateway that is killed under load: the SDK goes on at the other, and nothing runs twice.

The witnesses are the nodes' stores, with a row for each program that began, and sessions whose
cells count.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import cellwall
from kit.cluster.directories import directory
from kit.cluster.load import Load, begun
from kit.cluster.processes import cluster
from kit.postgres_server import Postgres
from kit.servers import ALICE
from kit.waiting import wait_until

PROGRAMS = int(os.environ.get("CELLWALL_TEST_PROGRAMS", "160"))
CALLERS = 8
FENCE_S = 10.0

pytestmark = [pytest.mark.root, pytest.mark.timeout(240 + PROGRAMS // 10)]


def test_sdk_goes_on_at_the_other_gateway_and_nothing_runs_twice(postgres: Postgres) -> None:
    with cluster(2, 2, directory=directory(postgres), fence_s=FENCE_S, probe_s=1.0) as made:
        load = Load(made, CALLERS, has_sessions=True)
        for killed, share in ((0, 4), (1, 2)):
            load.reach(PROGRAMS // share)
            made.gateways[killed].kill()
            with pytest.raises(cellwall.ServerUnreachable):  # the control: it is away
                cellwall.connect(made.address(killed), ALICE)
            load.reach(load.done + PROGRAMS // 10)
            made.restart_gateway(killed)
            made.wait_ready(2, killed)
        load.reach(PROGRAMS)
        done = load.end()
        made.stop()
        assert begun(made) == done
        print(f"{done} programs, each begun once")


def test_streams_and_terminals_go_on_at_the_other_gateway(postgres: Postgres) -> None:
    with cluster(1, 2, directory=directory(postgres), fence_s=FENCE_S) as made:
        addresses = [made.address(0), made.address(1)]
        with cellwall.connect(",".join(addresses), ALICE) as client, client.Sandbox() as sandbox:
            terminal = sandbox.commands.start("echo up; cat", pty=(24, 80), detach_s=60)
            assert b"up" in terminal.read()
            code = (
                "import time\nfor n in range(20):\n    print(n, flush=True)\n    time.sleep(0.05)"
            )
            seen: list[Any] = []
            with ThreadPoolExecutor(1) as pool:
                run = pool.submit(client.run, code, on_event=seen.append)
                wait_until(lambda: len(seen) > 3, "it streams")
                made.gateways[0].kill()
                told = run.result()
            assert "".join(each.text or "" for each in seen) == told.stdout
            assert [each.seq for each in seen] == list(range(1, len(seen) + 1))
            terminal.write("still\n")
            said, until = b"", time.monotonic() + 20
            while b"still" not in said and time.monotonic() < until:
                said += terminal.read()
            assert b"still" in said
            assert sandbox.run("6 * 7").text == "42"
            assert client.url == ",".join(addresses)
