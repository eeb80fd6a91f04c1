"""Sessions over three nodes, one of which is killed: the others keep their state."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import cellwall
from cellwall.model.ids import node_of
from kit.cluster.processes import Cluster, cluster
from kit.servers import ALICE, run_cell
from kit.waiting import wait_until

SESSIONS = int(os.environ.get("CELLWALL_TEST_SESSIONS", "36"))
FENCE_S = 6.0

pytestmark = [pytest.mark.root, pytest.mark.timeout(240 + SESSIONS)]


def _made(made: Cluster) -> dict[str, int]:
    """Make sessions, each with a number of its own; return the numbers by their ids."""
    client = made.client()

    def one(number: int) -> str:
        path = f"/sandboxes/{client.post('/sandboxes', json={}).json()['id']}"
        run_cell(client, path, f"x = {number}")
        return path.rpartition("/")[2]

    with ThreadPoolExecutor(8) as pool:
        return {each: number for number, each in enumerate(pool.map(one, range(SESSIONS)))}


def _ask(client: httpx.Client, session: str) -> tuple[int, str]:
    """Return the status of a session's cell, and what it printed or the error's code."""
    headers = {"accept": "application/json"}
    body = {"code": "print(x)"}
    answer = client.post(f"/sandboxes/{session}/execute", json=body, headers=headers)
    told = answer.json()
    return answer.status_code, told["stdout"] if answer.is_success else told["error"]["code"]


def test_sessions_of_a_lost_node_are_told_and_the_others_have_their_state() -> None:
    with cluster(3, fence_s=FENCE_S, probe_s=1.0) as made:
        numbers = _made(made)
        client, lost = made.client(), made.name_of("node-1")
        of_lost = [each for each in numbers if node_of(each) == lost]
        kept = [each for each in numbers if node_of(each) != lost]
        assert len({node_of(each) for each in numbers}) == 3
        made.nodes["node-1"].kill()
        with ThreadPoolExecutor(8) as pool:
            # Before the loss is told, too.
            for session, told in zip(kept, pool.map(lambda s: _ask(client, s), kept), strict=True):
                assert told == (200, f"{numbers[session]}\n")
            wait_until(lambda: client.get(f"/sandboxes/{of_lost[0]}").status_code == 410, "told")
            assert set(pool.map(lambda s: _ask(client, s), of_lost)) == {(410, "node_lost")}
            for session, told in zip(kept, pool.map(lambda s: _ask(client, s), kept), strict=True):
                assert told == (200, f"{numbers[session]}\n")
        with cellwall.connect(made.address(), ALICE) as sdk:
            with pytest.raises(cellwall.NodeLost):
                sdk.attach(of_lost[0])
            assert sdk.attach(kept[0]).run("x").text == str(numbers[kept[0]])
        made.start_node("node-1", FENCE_S)
        made.wait_ready(3)
        assert {_ask(client, each) for each in of_lost} == {(410, "node_lost")}
