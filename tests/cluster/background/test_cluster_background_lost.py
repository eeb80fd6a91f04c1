"""Programs in the background while a node, a gateway and the directory are killed or stopped.

None is lost and none begins twice. The witnesses are the nodes' stores, which have a row with a
start for each program that began there, under the id that the gateways gave.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from cellwall.model.ids import new_id
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster
from kit.postgres_server import Postgres, another
from kit.servers import ALICE, state_of
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

FENCE_S, PROBE_S = 10.0, 1.0
PROGRAMS = 200
_MOST_S = 400.0
_CODE = "import time; time.sleep(0.05); print({number})"


@pytest.fixture
def own(postgres: Postgres) -> Iterator[Postgres]:
    """A server that a test may kill; the capability was asked for by `postgres`."""
    with another() as made:
        yield made


@dataclass
class World:
    """What a test breaks."""

    made: Cluster
    own: Postgres


def _again(made: Cluster, ask: Callable[[str], httpx.Response]) -> httpx.Response:
    """Ask one gateway or the other, until there is an answer that is no 503."""
    until = time.monotonic() + _MOST_S
    while True:
        for gateway in made.gateways:
            with contextlib.suppress(httpx.TransportError):
                found = ask(f"http://127.0.0.1:{gateway.port}")
                if found.status_code != 503:
                    return found
        assert time.monotonic() < until
        time.sleep(0.1)


def _accepted(made: Cluster, number: int) -> str:
    """Have a program accepted, as the SDK does: again under its key; return its id."""
    headers = {"x-api-key": ALICE, "idempotency-key": new_id()}
    body = {"code": _CODE.format(number=number), "background": True}

    def ask(address: str) -> httpx.Response:
        return httpx.post(f"{address}/execute", json=body, headers=headers, timeout=30)

    found = _again(made, ask)
    assert found.status_code == 202, found.text
    return str(found.json()["execution_id"])


def _ended(made: Cluster, program_id: str) -> dict[str, Any]:
    until = time.monotonic() + _MOST_S
    while True:
        found = _again(
            made,
            lambda address: httpx.get(
                f"{address}/executions/{program_id}?wait=10",
                headers={"x-api-key": ALICE},
                timeout=30,
            ),
        )
        assert found.status_code == 200, found.text
        value: dict[str, Any] = found.json()
        if value["status"] not in {"queued", "running"}:
            return value
        assert time.monotonic() < until, value


def _begun_at(made: Cluster, name: str) -> list[str]:
    """Return the ids of the programs that have begun at a node."""
    path = state_of(made.folder / name) / "server" / "cellwall.db"
    with contextlib.closing(sqlite3.connect(path)) as store:
        rows = store.execute("SELECT id FROM executions WHERE started_at IS NOT NULL")
        return [str(row[0]) for row in rows]


def _restart_node(world: World) -> None:
    world.made.nodes["node-0"].kill()
    world.made.start_node("node-0", FENCE_S)


def _lose_node(world: World) -> None:
    world.made.nodes["node-0"].kill()


def _kill_gateway(world: World) -> None:
    world.made.gateways[0].kill()
    world.made.start_gateway(FENCE_S, PROBE_S, place=0)


def _stop_directory(world: World) -> None:
    world.own.stop(signal.SIGQUIT)
    time.sleep(5.0)  # for as long as it is away
    world.own.start()


@pytest.mark.parametrize(
    ("breaks", "may_lose"),
    [
        (_restart_node, True),
        (_lose_node, True),
        (_kill_gateway, False),
        (_stop_directory, False),
    ],
    ids=["node-restarted", "node-lost", "gateway-killed", "directory-away"],
)
def test_every_program_has_its_end_and_none_begins_twice(
    own: Postgres, breaks: Callable[[World], None], may_lose: bool
) -> None:
    with cluster(2, 2, directory=directory(own), fence_s=FENCE_S, probe_s=PROBE_S) as made:
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(_accepted, made, number) for number in range(PROGRAMS)]
            asked[PROGRAMS // 4].result()
            wait_until(lambda: len(_begun_at(made, "node-0")) > 3, "some have begun there")
            breaks(World(made, own))
            ids = [each.result() for each in asked]
            ends = list(pool.map(lambda each: _ended(made, each), ids))
        for each in made.gateways:
            each.stop()
        for name in made.nodes:
            if made.nodes[name].popen.poll() is None:
                made.nodes[name].kill()
        begun = [_begun_at(made, name) for name in made.nodes]
        told = Counter(end["verdict"] for end in ends)
        all_begun = Counter(itertools.chain.from_iterable(begun))
        assert set(all_begun.values()) == {1}
        for number, (program_id, end) in enumerate(zip(ids, ends, strict=True)):
            assert end["execution_id"] == program_id
            if end["verdict"] == "ok":
                assert end["stdout"] == f"{number}\n"
                assert program_id in all_begun
            else:
                assert may_lose, json.dumps(end)
                assert end["verdict"] == "interrupted", json.dumps(end)
                assert end["failure"]["code"] in {"node_lost", "interrupted"}
        assert told["ok"] > PROGRAMS // 2
        assert told["interrupted"] <= 24, told
