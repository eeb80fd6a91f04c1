"""Webhooks at the end of an execution: off unless the operator says so, signed, also after a crash.

Which addresses they may go to is tested with the sender (`test_webhook`, L10 to L16).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from kit.receivers import Received, Receiver, listening
from kit.server.crashes import house, program, submitted, wait_until
from kit.servers import ADMIN, error_of

pytestmark = pytest.mark.timeout(240)  # servers are started several times in one test

MANAGED = {"webhooks": True, "webhook_networks": ["127.0.0.0/8"]}


def _is_signed(received: Received, secret: str) -> bool:
    fields = dict(part.split("=", 1) for part in received.headers["cellwall-signature"].split(","))
    signed = hmac.new(secret.encode(), fields["t"].encode() + b"." + received.body, hashlib.sha256)
    return hmac.compare_digest(signed.hexdigest(), fields["v1"])


async def _received(receiver: Receiver, count: int) -> list[dict[str, Any]]:
    await asyncio.to_thread(wait_until, lambda: len(receiver.received) == count)
    return [json.loads(each.body) for each in receiver.received]


def test_end_is_told_and_signed_also_by_the_next_server(tmp_path: Path) -> None:
    async def scene() -> None:
        with house(tmp_path, **MANAGED) as made:
            async with listening() as receiver:
                url = receiver.url()
                server = await asyncio.to_thread(made.start)
                client = server.client(ADMIN)
                secret = client.get("/webhooks").json()["secret"]
                body = {"code": program("a"), "webhook": url}
                answer = await asyncio.to_thread(client.post, "/execute", json=body)
                value = answer.json()
                told = (await _received(receiver, 1))[0]
                shown = {"type", "execution_id", "status", "verdict", "sandbox_id", "started_at"}
                assert set(told) == shown
                assert (told["type"], told["verdict"]) == ("execution.ended", "ok")
                assert told["execution_id"] == value["execution_id"]
                assert _is_signed(receiver.received[0], secret)
                assert not _is_signed(receiver.received[0], secret[:-1] + "x")
                code = program("b", "import time\ntime.sleep(60)")
                cut = submitted(client, code, webhook=url)
                wait_until(lambda: made.ledger == ["a", "b"])
                made.kill(server)
                server = await asyncio.to_thread(made.start)
                told = (await _received(receiver, 2))[1]
                assert (told["execution_id"], told["verdict"]) == (cut, "interrupted")
                assert _is_signed(receiver.received[1], secret)
                assert server.client(ADMIN).get("/webhooks").json()["secret"] == secret

    asyncio.run(scene())


def test_webhooks_are_for_operators_to_allow_and_for_public_addresses(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listening() as receiver:
            with house(tmp_path) as made:
                client = (await asyncio.to_thread(made.start)).client()
                body = {"code": "1", "webhook": receiver.url()}
                refused = await asyncio.to_thread(client.post, "/execute", json=body)
                assert (refused.status_code, error_of(refused)["code"]) == (400, "usage")
                assert "webhooks = true" in error_of(refused)["remedy"]
                assert client.get("/webhooks").status_code == 403
            with house(tmp_path, webhooks=True) as made:  # allowed, but loopback is not listed
                client = (await asyncio.to_thread(made.start)).client()
                body = {"code": "1", "webhook": receiver.url(scheme="https")}
                taken = await asyncio.to_thread(client.post, "/execute", json=body)
                assert taken.status_code == 200
                odd = await asyncio.to_thread(
                    client.post, "/execute", json={"code": "1", "webhook": "file:///etc/passwd"}
                )
                assert odd.status_code == 400
                made.stop()
            assert receiver.connections == 0

    asyncio.run(scene())
