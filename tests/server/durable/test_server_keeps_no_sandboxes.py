"""What has ended can be asked about for a while; the sandbox it had is not kept for that.

Counted in the server itself, by type: resident memory would hide a hundred sandboxes in its noise.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from kit.server.counting import Counted, counted
from kit.servers import ADMIN, new_sandbox

_OF_A_SANDBOX = (
    "cellwall.engine.sandbox.AsyncSandbox",
    "cellwall.engine.attempts.attempt.Attempt",
    "cellwall.engine.attempts.attempt.Recorder",
    "cellwall.engine.parts.commands.Command",
)
_RECORDS = (
    "cellwall.server.executions.record.ExecutionRecord",
    "cellwall.server.executions.sandboxes.SandboxRecord",
    "cellwall.server.executions.sandboxes.CommandRecord",
)
_EACH = 5


@pytest.fixture(scope="module")
def counting() -> Iterator[Counted]:
    with counted({"CELLWALL_POOL_SIZE": "1"}, retention_s=600) as made:
        yield made


def _quiet_objects(counting: Counted) -> Counter[str]:
    """Count once the destructions under way have ended."""
    with httpx.Client(base_url=counting.server.address, headers={"X-API-Key": ADMIN}) as admin:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = admin.get("/stats").json()["server"]
            if not found["running"] and not found["pool"]["destroying"]:
                return counting.objects()
            time.sleep(0.05)
    raise AssertionError("it does not come to rest")


def _cell(client: httpx.Client, sandbox_id: str) -> None:
    answer = client.post(
        f"/sandboxes/{sandbox_id}/execute",
        json={"code": "print(1)"},
        headers={"Accept": "application/json"},
    )
    assert answer.json()["verdict"] == "ok", answer.text


def _command(client: httpx.Client, sandbox_id: str) -> str:
    answer = client.post(
        f"/sandboxes/{sandbox_id}/commands",
        json={"command": "echo x"},
        headers={"Accept": "application/json"},
    )
    assert answer.json()["verdict"] == "ok", answer.text
    return str(answer.json()["id"])


def test_ended_executions_and_sessions_hold_no_sandbox(counting: Counted) -> None:
    client = counting.server.client()
    before = _quiet_objects(counting)
    box = ""
    for _ in range(_EACH):
        assert client.post("/execute", json={"code": "print(1)"}).json()["verdict"] == "ok"
        box = new_sandbox(client)
        _cell(client, box)
        _command(client, box)
        assert client.delete(f"/sandboxes/{box}").status_code == 200
    after = _quiet_objects(counting)
    assert {name: after[name] - before[name] for name in _OF_A_SANDBOX} == dict.fromkeys(
        _OF_A_SANDBOX, 0
    )
    kept = [after[name] - before[name] for name in _RECORDS]
    assert kept == [2 * _EACH, _EACH, _EACH], "they are there to be asked about"
    answer = client.get(f"/sandboxes/{box}").json()
    assert (answer["status"], answer["ended_because"]) == ("stopped", "it was closed")


def test_living_session_holds_no_ended_command(counting: Counted) -> None:
    client = counting.server.client()
    box = new_sandbox(client)
    before = _quiet_objects(counting)
    ids = [_command(client, box) for _ in range(_EACH)]
    during = client.post(
        f"/sandboxes/{box}/commands", json={"command": "sleep 60", "background": True}
    )
    after = _quiet_objects(counting)
    name = "cellwall.engine.parts.commands.Command"
    assert after[name] - before[name] == 1, "the one that runs, and none of those that ended"
    shown = client.get(f"/sandboxes/{box}/commands/{ids[0]}").json()
    assert shown["stdout"] == "x\n"
    assert shown["pid"]
    assert during.status_code == 201
    client.delete(f"/sandboxes/{box}")
