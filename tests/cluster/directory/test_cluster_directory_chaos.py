"""Keys that are repeated at two gateways while the directory, a gateway and a node are killed.

The witness is the nodes' own list: each sandbox carries its key in its metadata.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cellwall.model.ids import new_id, node_of
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster
from kit.postgres_server import Postgres, another
from kit.servers import ALICE

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

FENCE_S = 60.0
KEYS = 24
_MOST_S = 60.0


@pytest.fixture
def own(postgres: Postgres) -> Iterator[Postgres]:
    """A server that a test may kill; the capability was asked for by `postgres`."""
    with another() as made:
        yield made


def _asked(made: Cluster, gateway: int, key: str) -> httpx.Response:
    """Ask for a sandbox as the SDK does: again under the same key until there is an answer."""
    until = time.monotonic() + _MOST_S
    body = {"metadata": {"key": key}}
    while True:
        address = f"http://127.0.0.1:{made.gateways[gateway].port}"
        headers = {"x-api-key": ALICE, "idempotency-key": key}
        try:
            answer = httpx.post(f"{address}/sandboxes", json=body, headers=headers, timeout=30)
        except httpx.TransportError:
            answer = httpx.Response(503)
        if answer.status_code != 503 or time.monotonic() > until:
            return answer
        time.sleep(0.05)


def _kill_directory(_made: Cluster, own: Postgres) -> None:
    own.stop(signal.SIGQUIT)
    own.start()


def _kill_gateway(made: Cluster, _own: Postgres) -> None:
    made.gateways[0].kill()
    made.start_gateway(FENCE_S, place=0)


@pytest.mark.parametrize("kill", [_kill_directory, _kill_gateway], ids=["directory", "gateway"])
def test_keys_make_one_sandbox_each_while_something_is_killed(
    own: Postgres, kill: Callable[[Cluster, Postgres], None]
) -> None:
    with cluster(2, 2, directory=directory(own), fence_s=FENCE_S, probe_s=1.0) as made:
        keys = [new_id() for _ in range(KEYS)]
        with ThreadPoolExecutor(6) as pool:
            asked = [
                pool.submit(_asked, made, gateway, key) for key in keys for gateway in (0, 1, 0)
            ]
            asked[KEYS // 2].result()
            kill(made, own)
            answers = [each.result() for each in asked]
        assert {each.status_code for each in answers} == {201}, [each.text for each in answers]
        for at, key in enumerate(keys):
            ids = {each.json()["id"] for each in answers[3 * at : 3 * at + 3]}
            assert len(ids) == 1, key
        listed = made.client(1).get("/sandboxes", params={"limit": "1000"}).json()["sandboxes"]
        found = Counter(each["metadata"]["key"] for each in listed)
        assert found == dict.fromkeys(keys, 1)  # also of those that ended, if there are any


def test_keys_make_one_sandbox_each_while_a_node_is_killed(own: Postgres) -> None:
    with cluster(2, 2, directory=directory(own), fence_s=FENCE_S, probe_s=1.0) as made:
        keys = [new_id() for _ in range(KEYS)]
        names = set(made.states())
        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(_asked, made, gateway, key) for key in keys for gateway in (0, 1)]
            asked[KEYS // 2].result()
            made.nodes["node-0"].kill()
            made.start_node("node-0", FENCE_S)
            answers = [each.result() for each in asked]
        ids: dict[str, set[str]] = {}
        for at, answer in enumerate(answers):
            # 410: it was made, and ended with its node's server.
            assert answer.status_code in {201, 410}, answer.text
            if answer.status_code == 201:
                ids.setdefault(keys[at // 2], set()).add(answer.json()["id"])
        assert all(len(each) == 1 for each in ids.values())
        assert {node_of(each) for found in ids.values() for each in found} == names
        listed = made.client(1).get("/sandboxes", params={"state": "live", "limit": "1000"})
        found = Counter(each["metadata"]["key"] for each in listed.json()["sandboxes"])
        assert set(found.values()) == {1}
