"""A node that is drained takes nothing new, and what began on it comes to its end.

The witness against programs that run twice are the nodes' own stores: a row for each program that
a node has accepted.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cellwall.model.ids import node_of
from kit.cluster.load import Load, begun
from kit.cluster.processes import Cluster, cluster, session_on
from kit.servers import ADMIN, run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

DRAIN_S = 4.0
LONG = {"code": "import time; time.sleep(3); print('done')"}


def _order(made: Cluster, name: str, word: str) -> httpx.Response:
    return made.client(key=ADMIN).post(f"/nodes/{name}/{word}")


def test_drained_node_takes_nothing_new_and_its_sessions_go_on_until_it_is_undrained() -> None:
    with cluster(2) as made:
        alice, first = made.client(), made.name_of("node-0")
        session = session_on(alice, first)
        run_cell(alice, session, "x = 1")
        answer = _order(made, first, "drain")
        assert (answer.status_code, answer.json()["left"]["sandboxes"]) == (200, 1), answer.text
        assert made.states()[first] == "draining"
        for _ in range(8):
            told = alice.post("/execute", json={"code": "1"}).json()
            assert node_of(told["execution_id"]) != first
        assert run_cell(alice, session, "print(x)")["stdout"] == "1\n"
        alice.delete(session)
        wait_until(lambda: _left(made, first) == 0, "it is empty")
        assert made.nodes["node-0"].popen.poll() is None  # its process stays
        assert _order(made, first, "undrain").status_code == 200
        made.wait_ready(2)
        session_on(alice, first)


def _left(made: Cluster, name: str) -> int:
    shown = made.client(key=ADMIN).get("/nodes").json()["nodes"]
    return int(next(each["left"] for each in shown if each["name"] == name))


def test_only_an_operator_drains_and_only_what_there_is() -> None:
    with cluster(1) as made:
        name = made.name_of("node-0")
        assert made.client().post(f"/nodes/{name}/drain").status_code == 403
        admin = made.client(key=ADMIN)
        for path in ("/nodes/zzzz/drain", f"/nodes/{name}/burn", f"/nodes/{name}", "/nodes/"):
            assert admin.post(path).status_code == 404, path
        assert admin.get(f"/nodes/{name}/drain").status_code == 404
        assert made.states() == {name: "ready"}


def test_node_that_is_told_to_end_ends_once_it_is_empty() -> None:
    with cluster(2, drain_s=600.0) as made:
        alice, first = made.client(), made.name_of("node-0")
        session = session_on(alice, first)
        with ThreadPoolExecutor(6) as pool:
            under_way = [pool.submit(alice.post, "/execute", json=LONG) for _ in range(6)]
            wait_until(lambda: _left(made, first) > 1, "programs run there")
            node = made.nodes["node-0"].popen
            node.send_signal(signal.SIGTERM)
            wait_until(lambda: made.states()[first] == "draining", "it is drained")
            for each in under_way:
                assert each.result().json()["stdout"] == "done\n", each.result().text
        refused = _order(made, first, "undrain")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert run_cell(alice, session, "print(7)")["stdout"] == "7\n"
        assert node.poll() is None
        alice.delete(session)
        assert node.wait(20) == 0


def test_second_signal_ends_a_node_at_once() -> None:
    with cluster(1, drain_s=600.0) as made:
        session_on(made.client(), made.name_of("node-0"))
        node = made.nodes["node-0"].popen
        node.send_signal(signal.SIGTERM)
        wait_until(lambda: list(made.states().values()) == ["draining"], "it is drained")
        node.send_signal(signal.SIGTERM)
        assert node.wait(20) == 0


def test_rolling_restart_under_load_fails_no_program_and_runs_none_twice() -> None:
    with cluster(3, gateways=2, drain_s=DRAIN_S) as made:
        alice = made.client()
        sessions = {each: session_on(alice, made.name_of(each)) for each in made.nodes}
        load = Load(made, 4)
        for name, session in sessions.items():
            began = time.monotonic()
            assert made.nodes[name].stop() == 0
            assert time.monotonic() - began >= DRAIN_S
            made.start_node(name, drain_s=DRAIN_S)
            for gateway in range(2):
                made.wait_ready(3, gateway)
            answer = alice.get(session)
            assert answer.status_code == 200, _told_of(made, name)
            ended = answer.json()
            assert (ended["status"], ended["ended_because"]) == ("stopped", "its node was drained")
        for number in range(2):
            made.restart_gateway(number)
            made.wait_ready(3, number)
        done = load.end()
        assert done > 20
        for name in sessions:
            made.nodes[name].stop(signal.SIGINT)
        assert begun(made) == done


def _told_of(made: Cluster, node: str) -> str:
    """Return what the gateway and the node itself say, for a failure."""
    nodes = made.client(key=ADMIN).get("/nodes").text
    return f"{nodes}\n{made.nodes[node].log.read_text(encoding='utf-8')[-3000:]}"
