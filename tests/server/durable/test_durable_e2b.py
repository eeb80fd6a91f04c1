"""What the E2B door knows of deadlines is known to the next server, too."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx
import pytest

from kit.server.e2b_doors import SETTINGS, E2BServer, created
from kit.server.kept_house import kept
from kit.servers import Server
from kit.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(150)]


def _door(server: Server) -> E2BServer:
    assert server.process.stdout is not None
    line = server.process.stdout.readline().strip()
    assert line.startswith("door e2b on http"), line
    return E2BServer(server, line.removeprefix("door e2b on "))


def _state(client: httpx.Client, sandbox: str) -> str:
    return str(client.get(f"/sandboxes/{sandbox}").json()["state"])


def _pausing(client: httpx.Client) -> str:
    """Make a sandbox that is paused after a second."""
    return created(client, autoPause=True, timeout=1)["sandboxID"]


def _wait_looked(client: httpx.Client) -> None:
    """Wait until all that have reached their deadline before are looked at, and paused."""
    last = _pausing(client)
    wait_until(lambda: _state(client, last) == "paused", "a later one is paused")


def test_one_that_was_paused_and_resumed_runs_on_after_a_restart(tmp_path: Path) -> None:
    """Resumed by another door, which gives it no new deadline."""
    with kept(tmp_path) as house:
        house.more = SETTINGS
        server = house.start()
        with contextlib.closing(_door(server)) as door:
            client = door.client()
            resumed, due = _pausing(client), created(client, autoPause=True, timeout=8)["sandboxID"]
            wait_until(lambda: _state(client, resumed) == "paused", "it is paused")
            assert server.client().post(f"/sandboxes/{resumed}/resume").status_code == 200
            _wait_looked(client)
            assert _state(client, resumed) == "running"
            house.kill(server)
        with contextlib.closing(_door(house.start())) as door:
            client = door.client()
            _wait_looked(client)
            assert _state(client, resumed) == "running"
            wait_until(lambda: _state(client, due) == "paused", "the other one is")  # the control
            later = client.post(f"/sandboxes/{resumed}/timeout", json={"timeout": 1})
            assert later.status_code == 204
            wait_until(lambda: _state(client, resumed) == "paused", "its next deadline holds")
