"""Two gateways over one directory: a node is lost for both or for none, a key makes one object."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from cellwall.model.ids import new_id, node_of
from kit.cluster.directories import directory, stop
from kit.cluster.processes import Cluster, cluster, session_on
from kit.cluster.relay import Relay, to_port
from kit.postgres_server import Postgres, another
from kit.servers import run_cell
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

FENCE_S = 6.0
AWAY_S = float(os.environ.get("CELLWALL_TEST_AWAY_S", str(2 * FENCE_S)))
ROUNDS = 50


@pytest.fixture(scope="module")
def own(postgres: Postgres) -> Iterator[Postgres]:
    """A server that a test may stop; the capability was asked for by `postgres`."""
    with another() as made:
        yield made


@pytest.fixture(scope="module")
def two(own: Postgres) -> Iterator[Cluster]:
    """Two nodes behind two gateways."""
    with cluster(2, 2, directory=directory(own), fence_s=FENCE_S) as made:
        yield made


def _same_at_once(clients: list[httpx.Client], path: str, body: object) -> list[httpx.Response]:
    """Send one request under one key at all gateways at once."""
    key = {"idempotency-key": new_id()}
    with ThreadPoolExecutor(2 * len(clients)) as pool:
        asked = [pool.submit(client.post, path, json=body, headers=key) for client in clients * 2]
        return [each.result() for each in asked]


# -- keys --------------------------------------------------------------------------------------


def test_one_key_at_two_gateways_at_once_makes_one_sandbox(two: Cluster) -> None:
    clients = [two.client(0), two.client(1)]
    made = set()
    for _ in range(ROUNDS):
        answers = _same_at_once(clients, "/sandboxes", {})
        assert {each.status_code for each in answers} == {201}, [each.text for each in answers]
        (only,) = {each.json()["id"] for each in answers}
        live = clients[0].get("/sandboxes", params={"state": "running"}).json()["sandboxes"]
        assert [each["id"] for each in live] == [only]
        made.add(only)
        assert clients[1].delete(f"/sandboxes/{only}").status_code == 200
    assert len(made) == ROUNDS
    assert len({node_of(each) for each in made}) == 2  # both nodes had a part
    # The control: without a key each request makes one.
    free = {client.post("/sandboxes", json={}).json()["id"] for client in clients}
    assert len(free) == 2
    for each in free:
        clients[0].delete(f"/sandboxes/{each}")


def test_one_key_at_two_gateways_at_once_runs_one_program(two: Cluster) -> None:
    clients = [two.client(0), two.client(1)]
    for number in range(ROUNDS):
        body = {"code": f"import os; print({number}, os.urandom(8).hex())"}
        answers = _same_at_once(clients, "/execute", body)
        assert {each.status_code for each in answers} == {200}, [each.text for each in answers]
        assert len({each.json()["stdout"] for each in answers}) == 1
        replays = [each for each in answers if "idempotent-replay" in each.headers]
        assert len(replays) == len(answers) - 1


def test_key_of_another_request_is_refused_as_one_server_does(two: Cluster) -> None:
    key = {"idempotency-key": new_id()}
    first = two.client(0).post("/execute", json={"code": "print(1)"}, headers=key)
    assert first.json()["stdout"] == "1\n"
    other = two.client(1).post("/execute", json={"code": "print(2)"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency")
    elsewhere = two.client(1).post("/sandboxes", json={}, headers=key)
    assert (elsewhere.status_code, elsewhere.json()["error"]["code"]) == (409, "idempotency")
    again = two.client(1).post("/execute", json={"code": "print(1)"}, headers=key)
    assert (again.status_code, again.json()["stdout"]) == (200, "1\n")


def test_key_outlives_a_killed_node_gateway_and_directory(own: Postgres) -> None:
    with cluster(2, 2, directory=directory(own), fence_s=30.0) as made:
        key = {"idempotency-key": new_id()}
        body = {"code": "import os; print(os.urandom(8).hex())"}
        first = made.client(0).post("/execute", json=body, headers=key)
        node = node_of(first.headers["x-execution-id"])
        # The gateway that had it is gone.
        made.gateways[0].kill()
        again = made.client(1).post("/execute", json=body, headers=key)
        assert again.json()["stdout"] == first.json()["stdout"]
        made.start_gateway(30.0, place=0)
        made.wait_ready(2, 0)
        assert made.client(0).post("/execute", json=body, headers=key).text == again.text
        # The directory has crashed.
        own.stop(signal.SIGQUIT)
        own.start()
        wait_until(
            lambda: made.client(1).post("/execute", json=body, headers=key).status_code == 200,
            "the directory is there again",
        )
        # The node was killed, and is there again under its name.
        killed = next(each for each in made.nodes if made.name_of(each) == node)
        made.nodes[killed].kill()
        made.start_node(killed, 30.0)
        made.wait_ready(2, 0)
        made.wait_ready(2, 1)
        for gateway in (0, 1):
            last = made.client(gateway).post("/execute", json=body, headers=key)
            assert last.headers["x-execution-id"] == first.headers["x-execution-id"], last.text
            assert last.json()["stdout"] == first.json()["stdout"]


# -- the directory is away ---------------------------------------------------------------------


def _stand_still(own: Postgres) -> None:
    stop(own, signal.SIGSTOP)


def _go_on(own: Postgres) -> None:
    stop(own, signal.SIGCONT)


@pytest.mark.timeout(240 + 2 * AWAY_S)
@pytest.mark.parametrize(
    ("leave", "come_back"),
    [(_stand_still, _go_on), (Postgres.stop, Postgres.start)],
    ids=["stands still", "is stopped"],
)
def test_directory_that_is_away_stops_alone_what_may_be_done_once(
    own: Postgres,
    two: Cluster,
    leave: Callable[[Postgres], None],
    come_back: Callable[[Postgres], None],
) -> None:
    """`CELLWALL_TEST_AWAY_S` says for how long; longer than any fence."""
    alice, states = two.client(0), two.states(0)
    sessions = [f"/sandboxes/{alice.post('/sandboxes', json={}).json()['id']}" for _ in range(4)]
    for number, session in enumerate(sessions):
        run_cell(alice, session, f"x = {number}")
    leave(own)
    rounds = 0
    try:
        until = time.monotonic() + AWAY_S
        while time.monotonic() < until:
            for gateway in (0, 1):
                _check_without_directory(two.client(gateway), sessions)
            rounds += 1
    finally:
        come_back(own)
    assert rounds > 2
    for gateway in (0, 1):
        client, key = two.client(gateway), {"idempotency-key": new_id()}
        wait_until(
            lambda client=client, key=key: (
                client.post(  # type: ignore[misc]
                    "/execute", json={"code": "1"}, headers=key
                ).status_code
                == 200
            ),
            "keyed requests go on",
        )
    assert two.states(0) == two.states(1) == states  # nothing fenced, nothing lost
    for number, session in enumerate(sessions):
        assert run_cell(alice, session, "print(x)")["stdout"] == f"{number}\n"
        alice.delete(session)
    made = two.client(1).post("/sandboxes", json={})
    assert made.status_code == 201, made.text
    alice.delete(f"/sandboxes/{made.json()['id']}")


def _check_without_directory(client: httpx.Client, sessions: list[str]) -> None:
    """Hold what goes on to go on, and what may not to say so."""
    free = client.post("/execute", json={"code": "print(1)"})
    assert free.json()["stdout"] == "1\n", free.text
    for number, session in enumerate(sessions):
        assert run_cell(client, session, "print(x)")["stdout"] == f"{number}\n"
    for path, body in (("/execute", {"code": "1"}), ("/sandboxes", {})):
        refused = client.post(path, json=body, headers={"idempotency-key": new_id()})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_busy")
        assert float(refused.headers["retry-after"]) > 0


# -- losses ------------------------------------------------------------------------------------


def test_node_that_another_gateway_hears_is_not_lost(own: Postgres) -> None:
    relays: list[Relay] = []
    with cluster(2, 1, directory=directory(own), fence_s=FENCE_S) as made:
        try:
            relay = to_port(made.ports["node-0"])
            relays.append(relay)
            made.detours["gate-1"] = {"node-0": relay.port}
            made.start_gateway(FENCE_S)
            made.wait_ready(2, 1)
            hears, cut_off = made.client(0), made.client(1)
            first = made.name_of("node-0")
            session = session_on(hears, first)
            run_cell(hears, session, "x = 7")
            relay.cut()
            wait_until(lambda: made.states(1)[first] == "unreachable", "the gateway is cut off")
            until = time.monotonic() + 2 * FENCE_S + 4  # a gateway alone would tell a loss
            while time.monotonic() < until:
                refused = cut_off.get(session)
                assert refused.status_code == 503, refused.text
                assert refused.json()["error"]["code"] == "node_unreachable"
                assert run_cell(hears, session, "print(x)")["stdout"] == "7\n"
                free = cut_off.post("/execute", json={"code": "print(1)"})
                assert free.json()["stdout"] == "1\n"  # at the other node
            relay.heal()
            made.wait_ready(2, 1)
            assert run_cell(cut_off, session, "print(x)")["stdout"] == "7\n"
            assert made.states(0) == made.states(1)
        finally:
            for each in relays:
                each.close()


def test_loss_is_told_by_all_gateways_and_for_ever(own: Postgres) -> None:
    with cluster(2, 2, directory=directory(own), fence_s=FENCE_S) as made:
        first = made.name_of("node-0")
        session = session_on(made.client(0), first)
        key = {"idempotency-key": new_id()}
        body = {"code": "print(3)"}
        while node_of(keyed := _ran(made, body, key)) != first:
            key = {"idempotency-key": new_id()}
        assert keyed
        made.nodes["node-0"].kill()
        for gateway in (0, 1):
            client = made.client(gateway)
            wait_until(lambda client=client: client.get(session).status_code == 410, "told")  # type: ignore[misc]
            assert client.get(session).json()["error"]["code"] == "node_lost"
            again = client.post("/execute", json=body, headers=key)
            assert (again.status_code, again.json()["error"]["code"]) == (410, "node_lost")
            other = client.post("/execute", json={"code": "print(4)"}, headers=key)
            assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency")
        # It comes back, and hears that its name is over; a gateway that starts knows it, too.
        made.start_node("node-0", FENCE_S)
        made.wait_ready(2, 0)
        made.gateways[1].stop()
        made.start_gateway(FENCE_S, place=1)
        assert made.client(1).get(session).status_code == 410  # with its first answer
        made.wait_ready(2, 1)
        assert first not in {name for name, state in made.states(1).items() if state != "lost"}


def _ran(made: Cluster, body: object, key: dict[str, str]) -> str:
    return str(made.client(1).post("/execute", json=body, headers=key).headers["x-execution-id"])


def test_gateway_waits_for_a_directory_that_is_away(own: Postgres, tmp_path: Path) -> None:
    with cluster(1, 1, directory=directory(own), fence_s=FENCE_S) as made:
        own.stop(signal.SIGINT)
        try:
            with ThreadPoolExecutor(1) as pool:
                starting = pool.submit(made.start_gateway, FENCE_S)
                log = made.folder / "gate-1" / "log"
                wait_until(lambda: log.exists() and "waits for it" in log.read_text(), "it says so")
                assert not starting.done()
                own.start()
                assert starting.result().port
        finally:
            if own.is_stopped:
                own.start()
        made.wait_ready(1, 1)
