"""Quotas of memory and CPUs over two nodes and two gateways: never more, none refused for nothing.

The witness is what the nodes themselves say of the tenant's use.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cellwall.model.ids import node_of
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster
from kit.cluster.witness import Witness
from kit.postgres_server import Postgres
from kit.servers import BOB

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

MEMORY_MB = 1024
CLIENTS = 200
SMALL: dict[str, Any] = {"limits": {"memory_mb": 64, "cpus": 0.5}}
"""Sixteen of them are the quota of memory, and twice as many that of CPUs."""
TIERS = (
    f"[tiers.default]\nmemory_mb = {MEMORY_MB}\ncpus = 16.0\n"
    "[tiers.slim]\ncpus = 2.0\n[tenants]\nbob = 'slim'\n"
)


@pytest.fixture(scope="module")
def two(postgres: Postgres) -> Iterator[Cluster]:
    with cluster(2, 2, directory=directory(postgres), tiers=TIERS, probe_s=1.0) as made:
        yield made


def _clear(client: httpx.Client) -> None:
    for each in client.get("/sandboxes", params={"state": "live"}).json()["sandboxes"]:
        client.delete(f"/sandboxes/{each['id']}")


def test_memory_of_sandboxes_is_never_more_than_the_quota(two: Cluster) -> None:
    clients = [two.client(number % 2) for number in range(8)]
    with Witness(two, "memory_mb") as witness, ThreadPoolExecutor(32) as pool:
        answers = list(
            pool.map(
                lambda number: clients[number % 8].post("/sandboxes", json=SMALL), range(CLIENTS)
            )
        )
        made = [each.json()["id"] for each in answers if each.status_code == 201]
        assert len(made) == MEMORY_MB // 64  # none was refused below the quota
        assert len({node_of(each) for each in made}) == 2
        refused = [each.json()["error"] for each in answers if each.status_code != 201]
        assert {(each["code"], each["quota"]) for each in refused} == {("quota", "memory_mb")}
        assert refused[-1]["message"] == "quota memory_mb: 1024 of 1024 are in use"
        # What is deleted is room again, at once and at the other gateway, on whichever node.
        for number in range(20):
            assert clients[0].delete(f"/sandboxes/{made.pop(0)}").status_code == 200
            answer = clients[1].post("/sandboxes", json=SMALL)
            assert answer.status_code == 201, (number, answer.text)
            made.append(answer.json()["id"])
    assert (witness.most, witness.looks > 20) == (MEMORY_MB, True)
    _clear(clients[0])


def test_what_the_quota_of_memory_allows_is_hardly_ever_refused(two: Cluster) -> None:
    most = MEMORY_MB // 64
    clients = [two.client(number % 2) for number in range(most)]

    def churn(at: int) -> tuple[int, int]:
        refused = 0
        for number in range(10):
            answer = clients[(at + number) % most].post("/sandboxes", json=SMALL)
            refused += answer.status_code == 429
            if answer.status_code == 201:
                path = f"/sandboxes/{answer.json()['id']}"
                assert clients[(at + number + 1) % most].delete(path).status_code == 200
            else:
                assert answer.status_code == 429, answer.text
        return 10, refused

    with Witness(two, "memory_mb") as witness, ThreadPoolExecutor(most) as pool:
        counts = list(pool.map(churn, range(most)))
    asked, refused = (sum(each) for each in zip(*counts, strict=True))
    assert refused <= asked // 100, (refused, asked)
    assert 64 < witness.most <= MEMORY_MB
    print(f"refused below the quota: {refused} of {asked}")


def test_programs_wait_for_the_cpus_of_others(two: Cluster) -> None:
    bobs = [two.client(number % 2, key=BOB) for number in range(8)]
    body = {"code": "import time; time.sleep(0.1); print(42)", "limits": {"cpus": 0.5}}
    with Witness(two, "cpus", BOB) as witness, ThreadPoolExecutor(64) as pool:
        answers = list(
            pool.map(lambda number: bobs[number % 8].post("/execute", json=body), range(CLIENTS))
        )
    assert {(each.status_code, each.json().get("stdout")) for each in answers} == {(200, "42\n")}
    assert (witness.most, witness.looks > 20) == (2.0, True)


def test_copies_have_their_part_of_the_quota(two: Cluster) -> None:
    first, second = two.client(0), two.client(1)
    wide = {"limits": {"memory_mb": 256, "cpus": 0.5}}
    source = first.post("/sandboxes", json=wide).json()["id"]
    forked = second.post(f"/sandboxes/{source}/fork", json={"count": 3}).json()["forks"]
    assert [each["error"] for each in forked] == [None] * 3
    refused = second.post(f"/sandboxes/{source}/fork", json={"count": 1})
    assert (refused.status_code, refused.json()["error"]["quota"]) == (429, "memory_mb")
    _clear(first)


def test_what_can_never_fit_is_refused_as_one_server_does(two: Cluster) -> None:
    large = {"limits": {"memory_mb": 2048}}
    for path, more in (("/sandboxes", {}), ("/execute", {"code": "1"})):
        answer = two.client().post(path, json={**large, **more})
        assert answer.status_code == 400, answer.text
        assert "quota memory_mb: 2048 can never fit" in answer.text, answer.text
