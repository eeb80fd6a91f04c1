"""A gateway over two nodes: the API of one box, and the node in every id."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from kit.cluster.processes import Cluster, cluster

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def two() -> Iterator[Cluster]:
    with cluster(2) as made:
        yield made


@pytest.fixture
def alice(two: Cluster) -> httpx.Client:
    return two.client()


def test_program_runs_on_some_node(alice: httpx.Client) -> None:
    answer = alice.post("/execute", json={"code": "print(6 * 7)"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["stdout"] == "42\n"


def test_gateway_is_there_and_shows_its_nodes(two: Cluster, alice: httpx.Client) -> None:
    assert alice.get("/health").json()["status"] == "ok"
    states = two.states()
    assert set(states.values()) == {"ready"}
    assert all(len(name) == 4 for name in states)
