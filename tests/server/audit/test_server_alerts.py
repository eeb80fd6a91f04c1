"""A rule that is met is told to the operator's own server, signed, if that is wanted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kit.receivers import listening
from kit.server.crashes import wait_until
from kit.servers import configuration, start

RULES = {"flag_limit_hits": 2, "warm": ["python"]}


def test_an_alert_reaches_the_operators_webhook(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listening() as receiver:
            config = configuration(
                webhooks=True,
                webhook_networks=["127.0.0.0/8"],
                flag_webhook=receiver.url(),
                **RULES,
            )
            server = await asyncio.to_thread(start, tmp_path, "--port", "0", config=config)
            try:
                client = server.client()
                slow = {"code": "while 1: pass", "timeout": 0.1}
                for _ in range(2):
                    (await asyncio.to_thread(client.post, "/execute", json=slow)).json()
                await asyncio.to_thread(wait_until, lambda: len(receiver.received) == 1)
            finally:
                await asyncio.to_thread(server.stop)
        told = json.loads(receiver.received[0].body)
        expected = {"rule": "limit_hits", "who": "alice", "count": 2, "window_s": 60.0}
        assert told == {"type": "rule.flag", **expected}
        assert "v1=" in receiver.received[0].headers["cellwall-signature"]

    asyncio.run(scene())


def test_a_webhook_for_alerts_needs_webhooks(tmp_path: Path) -> None:
    config = configuration(warm=[], flag_webhook="https://example.org/alerts")
    with pytest.raises(AssertionError, match="webhooks are off"):
        start(tmp_path, "--port", "0", config=config)
