"""Programs in the background over two gateways and two nodes: one server's answers at both."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from cellwall.model.ids import GATEWAYS, node_of
from kit.cluster.directories import directory
from kit.cluster.processes import Cluster, cluster
from kit.postgres_server import Postgres
from kit.receivers import Answer, Received, Receiver, answer, listening
from kit.servers import ALICE, BOB, MANAGER, error_of
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

TIERS = """
[tiers.few]
running = 1
queued = 3

[tenants]
bob = "few"
"""
_HELD = "import time; time.sleep(60)"


def _key_file(folder: Path) -> Path:
    made = folder / "secrets.key"
    made.write_text(secrets.token_hex(32), encoding="ascii")
    made.chmod(0o600)
    return made


def _at_gateway(folder: Path) -> dict[str, Any]:
    key = str(_key_file(folder))
    return {"secrets_key_file": key, "webhooks": True, "webhook_networks": ["127.0.0.0/8"]}


@contextlib.contextmanager
def receiving(says: Callable[[int], Answer]) -> Iterator[Receiver]:
    """Run a receiver of webhooks for the length of a block, on a thread of its own."""
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    made: Future[Receiver] = Future()

    async def serve() -> None:
        async with listening(says) as receiver:
            made.set_result(receiver)
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield made.result(10)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def _check_signed(secret: str, request: Received) -> None:
    """Check a signature as docs/server.md tells receivers."""
    parts = request.headers["cellwall-signature"].split(",")
    moment, signed = (each.partition("=")[2] for each in parts)
    made = hmac.new(secret.encode(), moment.encode() + b"." + request.body, hashlib.sha256)
    assert signed == made.hexdigest()


@pytest.fixture(scope="module")
def made(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    at_gateway = _at_gateway(tmp_path_factory.mktemp("key"))
    url = directory(postgres)
    with cluster(2, 2, directory=url, fence_s=60.0, at_gateway=at_gateway, tiers=TIERS) as found:
        yield found


def _begin(client: httpx.Client, code: str, key: str = "", **more: object) -> httpx.Response:
    headers = {"idempotency-key": key} if key else {}
    body = {"code": code, "background": True, **more}
    return client.post("/execute", json=body, headers=headers)


def _ended(client: httpx.Client, program_id: str) -> dict[str, Any]:
    """Return a program's object once it has ended."""
    while True:
        found = client.get(f"/executions/{program_id}", params={"wait": "5"})
        assert found.status_code == 200, found.text
        value: dict[str, Any] = found.json()
        if value["status"] not in {"queued", "running"}:
            return value


def test_a_program_is_read_at_every_gateway(made: Cluster) -> None:
    one, other = made.client(0), made.client(1)
    accepted = _begin(one, "print(6 * 7)")
    assert accepted.status_code == 202, accepted.text
    value = accepted.json()
    program_id = value["execution_id"]
    assert node_of(program_id) == GATEWAYS
    assert accepted.headers["location"] == f"/executions/{program_id}"
    assert value["status"] == "queued"
    ended = _ended(other, program_id)
    assert (ended["stdout"], ended["verdict"], ended["execution_id"]) == ("42\n", "ok", program_id)
    assert set(ended) == set(value)
    for client in (one, other):
        lines = client.get(f"/executions/{program_id}/events").text.splitlines()
        assert json.loads(lines[-1])["type"] == "end"
        assert "42" in "".join(json.loads(each).get("text", "") for each in lines)
    cancelled = one.delete(f"/executions/{program_id}")
    assert cancelled.json() == {"message": "it had ended", "id": program_id}


def test_foreign_tenants_see_nothing(made: Cluster) -> None:
    program_id = _begin(made.client(), "print(1)").json()["execution_id"]
    bob = made.client(1, BOB)
    none = "gate" + "a" * 26
    for path in ("", "/events"):
        found = bob.get(f"/executions/{program_id}{path}")
        control = bob.get(f"/executions/{none}{path}")
        assert found.status_code == control.status_code == 404
        assert error_of(found)["code"] == error_of(control)["code"]
    assert bob.delete(f"/executions/{program_id}").status_code == 404
    assert _ended(made.client(), program_id)["verdict"] == "ok"


def test_a_repeated_key_is_one_program_at_both_gateways(made: Cluster) -> None:
    first = _begin(made.client(0), "print(1)", "k-1")
    again = _begin(made.client(1), "print(1)", "k-1")
    assert again.status_code == 202
    assert again.headers["idempotent-replay"] == "true"
    assert again.json()["execution_id"] == first.json()["execution_id"]
    assert _begin(made.client(1), "print(2)", "k-1").status_code == 409
    plain = made.client(1).post(
        "/execute", json={"code": "print(1)"}, headers={"idempotency-key": "k-1"}
    )
    assert (plain.status_code, error_of(plain)["code"]) == (409, "idempotency")


def test_what_a_server_refuses_is_refused_before_it_is_kept(made: Cluster) -> None:
    alice = made.client()
    wrong: dict[str, object] = {"language": "no-such", "tools": [], "limits": 1, "files": 7}
    for name, value in wrong.items():
        body = {"code": "print(1)", name: value}
        control = alice.post("/execute", json=body)
        found = alice.post("/execute", json={**body, "background": True})
        assert 400 <= control.status_code < 500, control.text
        assert found.status_code == control.status_code, found.text
        assert error_of(found)["code"] == error_of(control)["code"]
    assert _begin(alice, "print(1)", "k" * 129).status_code == 400
    assert _begin(alice, "print(1)", webhook="ftp://nowhere").status_code == 400


def test_what_fails_only_at_its_turn_is_an_end(made: Cluster) -> None:
    accepted = _begin(made.client(), "print(1)", template="no-such")
    assert accepted.status_code == 202, accepted.text
    value = _ended(made.client(1), accepted.json()["execution_id"])
    assert (value["status"], value["failure"]["code"]) == ("error", "not_found")


def test_cancelled_while_it_waits_and_while_it_runs(made: Cluster) -> None:
    bob, other = made.client(0, BOB), made.client(1, BOB)
    runs = _begin(bob, _HELD).json()["execution_id"]
    wait_until(
        lambda: other.get(f"/executions/{runs}").json()["status"] == "running", "it has begun"
    )
    waits = [_begin(bob, "print(1)").json()["execution_id"] for _ in range(3)]
    full = _begin(bob, "print(1)")
    assert (full.status_code, error_of(full)["code"]) == (429, "quota"), full.text
    assert other.get(f"/executions/{waits[0]}").json()["status"] == "queued"
    gone = other.delete(f"/executions/{waits[0]}")
    assert gone.json() == {"message": "cancelled", "id": waits[0]}
    value = bob.get(f"/executions/{waits[0]}").json()
    assert (value["status"], value["verdict"]) == ("error", "cancelled")
    (line,) = bob.get(f"/executions/{waits[0]}/events").text.splitlines()
    assert json.loads(line)["verdict"] == "cancelled"
    # The quota of one: the second begins only after the first has ended.
    assert bob.get(f"/executions/{waits[1]}").json()["status"] == "queued"
    assert other.delete(f"/executions/{runs}").status_code == 200
    assert _ended(bob, runs)["verdict"] == "cancelled"
    assert [_ended(other, each)["verdict"] for each in waits[1:]] == ["ok", "ok"]


def test_a_webhook_tells_of_the_end_and_is_signed(made: Cluster) -> None:
    manager = made.client(1, MANAGER)
    shown = manager.get("/webhooks").json()
    assert shown["header"] == "Cellwall-Signature"
    assert shown == made.client(0, MANAGER).get("/webhooks").json()
    assert made.client().get("/webhooks").status_code == 403

    with receiving(lambda number: answer(503 if number == 1 else 200)) as receiver:
        told = _begin(manager, "print(1)", webhook=receiver.url())
        assert told.status_code == 202, told.text
        wait_until(lambda: len(receiver.received) >= 2, "two attempts")
    first, second = receiver.received
    assert first.body == second.body
    assert first.headers["cellwall-delivery"] == second.headers["cellwall-delivery"]
    _check_signed(shown["secret"], second)
    notice = json.loads(second.body)
    assert (notice["type"], notice["verdict"]) == ("execution.ended", "ok")
    assert node_of(notice["execution_id"]) == GATEWAYS


def test_a_webhook_is_delivered_after_its_gateway_was_killed(
    postgres: Postgres, tmp_path: Path
) -> None:
    at_gateway = _at_gateway(tmp_path)
    url, is_killed = directory(postgres), threading.Event()
    with (
        receiving(lambda _: answer(200 if is_killed.is_set() else 503)) as receiver,
        cluster(1, 1, directory=url, fence_s=60.0, at_gateway=at_gateway) as made,
    ):
        secret = made.client(0, MANAGER).get("/webhooks").json()["secret"]
        _begin(made.client(0, MANAGER), "print(1)", webhook=receiver.url())
        wait_until(lambda: receiver.received, "an attempt that failed")
        made.gateways[0].kill()
        is_killed.set()
        before = len(receiver.received)
        made.start_gateway(60.0, **at_gateway)
        wait_until(lambda: len(receiver.received) > before, "another gateway's attempt")
    last = receiver.received[-1]
    assert last.headers["cellwall-delivery"] == receiver.received[0].headers["cellwall-delivery"]
    _check_signed(secret, last)


def test_many_programs_of_one_tenant_end(made: Cluster) -> None:
    alice = made.client(0, ALICE)
    ids = [_begin(alice, f"print({number})").json()["execution_id"] for number in range(40)]
    other = made.client(1)
    assert [_ended(other, each)["stdout"] for each in ids] == [f"{each}\n" for each in range(40)]
