"""A tenant that fills the store's disk with what waits and with what is kept; the others work on.

The witnesses are the disk itself, a small one of its own, and the other tenant. Control: without
the quota and the floor the disk is full, and nobody is served any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import require_capability
from kit.servers import ADMIN, BOB, Server, configuration, error_of, new_sandbox, running, start

MIB = 1 << 20
_SLEEP = {"code": "import time; time.sleep(600)", "background": True, "timeout": 600}
_TIER = "[tiers.default]\nstored_mb = 4\n"


def waiting(client: httpx.Client, size: int) -> httpx.Response:
    """Leave a program of `size` bytes to the server, that nobody waits for."""
    body = {"code": "print(1)", "files": {"f": "x" * size}, "background": True}
    return client.post("/execute", json=body)


def use_of(server: Server, tenant: str = "alice") -> dict[str, Any]:
    tenants = server.client(ADMIN).get("/stats").json()["server"]["tenants"]
    return next(dict(each["use"]) for each in tenants if each["tenant"] == tenant)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not is_true():
        assert time.monotonic() < deadline


def serves_others(server: Server) -> bool:
    """Report whether the other tenant can do everything that is small."""
    bob = server.client(BOB)
    try:
        new_sandbox(bob)
        return [waiting(bob, 60_000).status_code for _ in range(10)] == [202] * 10
    except AssertionError:
        return False


@pytest.fixture
def busy() -> Iterator[Server]:
    """A server whose only place is taken: whatever comes waits."""
    with running(_TIER, most_running=1, retention_s=3, stop_s=1) as server:
        server.client().post("/execute", json=_SLEEP).raise_for_status()
        yield server


def test_bodies_that_wait_have_a_bound_for_each_tenant(busy: Server) -> None:
    alice = busy.client()
    answers = [waiting(alice, MIB) for _ in range(5)]
    assert [each.status_code for each in answers] == [202] * 3 + [429] * 2
    error = error_of(answers[-1])
    assert (error["code"], error["quota"]) == ("quota", "stored_mb")
    assert "4 MiB" in error["message"]
    assert int(answers[-1].headers["retry-after"]) >= 1
    shown = alice.get("/quota").json()
    assert shown["quotas"]["stored_mb"] == 4
    assert 3 <= shown["use"]["stored_mb"] < 3.1
    assert waiting(alice, 1000).status_code == 202  # there is room for that
    assert waiting(busy.client(BOB), MIB).status_code == 202
    assert serves_others(busy)
    for each in answers[:3]:  # what waits no more is not there
        alice.delete(f"/executions/{each.json()['execution_id']}").raise_for_status()
    assert waiting(alice, MIB).status_code == 202


def test_body_of_a_program_that_runs_waits_no_more() -> None:
    with running(_TIER, most_running=1, stop_s=1) as server:
        alice = server.client()
        head = alice.post("/execute", json=_SLEEP).json()["execution_id"]
        body = {**_SLEEP, "files": {"f": "x" * MIB}}
        alice.post("/execute", json=body).raise_for_status()
        assert use_of(server)["stored_mb"] >= 1
        alice.delete(f"/executions/{head}").raise_for_status()
        wait_until(lambda: use_of(server)["queued"] == 0)
        wait_until(lambda: use_of(server)["stored_mb"] < 1)
        assert use_of(server)["running"] == 1


def test_body_that_can_never_wait_is_a_400(busy: Server) -> None:
    refused = waiting(busy.client(), 5 * MIB)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "usage")


@pytest.mark.parametrize("kind", ["output", "collected", "cell"])
def test_what_is_kept_of_programs_has_the_same_bound(kind: str) -> None:
    """Nothing waits: what ended is asked about for a while, and forgotten then."""
    with running(_TIER, retention_s=4) as server:
        alice = server.client()
        code, more = "print('x' * 1_500_000)", {"limits": {"output_kb": 4096}}
        path = "/execute"
        if kind == "collected":
            code = "open('f', 'w').write('x' * 1_500_000)"
            more = {"collect": ["f"]}  # type: ignore[dict-item]
        elif kind == "cell":
            path = f"/sandboxes/{new_sandbox(alice)}/execute"
            code, more = "print('x' * 900_000)", {}
        plain = {"Accept": "application/json"}
        answers: list[httpx.Response] = []
        while len(answers) < 12 and (not answers or answers[-1].status_code == 200):
            answers.append(alice.post(path, json={"code": code, **more}, headers=plain))
        assert 2 <= len(answers) < 12
        assert (answers[-1].status_code, error_of(answers[-1])["quota"]) == (429, "stored_mb")
        refused = alice.post("/sandboxes", json={})
        assert (refused.status_code, error_of(refused)["quota"]) == (429, "stored_mb")
        assert serves_others(server)
        wait_until(lambda: alice.post("/execute", json={"code": "1"}).status_code == 200)
        assert use_of(server)["stored_mb"] < 4


def test_programs_that_wait_have_no_turn_while_too_much_is_kept() -> None:
    """Ten were taken when nothing was kept; three leave more than the tenant may have."""
    with running(_TIER, retention_s=3, most_running=1) as server:
        alice = server.client()
        head = alice.post("/execute", json={**_SLEEP, "timeout": 2}).json()["execution_id"]
        body = {"code": "print('x' * 1_500_000)", "limits": {"output_kb": 4096}, "background": True}
        ids = [alice.post("/execute", json=body).json()["execution_id"] for _ in range(6)]
        alice.get(f"/executions/{head}", params={"wait": 20})
        wait_until(lambda: use_of(server)["stored_mb"] > 4)
        most = 0.0
        while any(
            alice.get(f"/executions/{each}").json().get("status") == "queued" for each in ids
        ):
            most = max(most, use_of(server)["stored_mb"])
            assert server.client(BOB).post("/execute", json={"code": "1"}).status_code == 200
        assert most < 4 + 4  # what one program leaves above the bound, and nothing more


def test_what_waits_and_is_kept_is_counted_by_the_next_server(tmp_path: Path) -> None:
    config = configuration(_TIER, most_running=1, stop_s=0)
    server = start(tmp_path, "--port", "0", config=config)
    body = {"code": "print('x' * 900_000)"}
    server.client().post("/execute", json=body).raise_for_status()
    server.client().post("/execute", json=_SLEEP).raise_for_status()
    waiting(server.client(), 2 * MIB).raise_for_status()
    before = use_of(server)["stored_mb"]
    server.process.kill()
    server.process.wait()
    server.stop()
    server = start(tmp_path, "--port", "0", config=config)
    try:
        server.client(BOB).post("/execute", json=_SLEEP).raise_for_status()
        after = use_of(server)["stored_mb"]
        assert 0.5 < after <= before + 0.1
    finally:
        server.stop()


# -- a real disk ---------------------------------------------------------------------------------

_DISK_MB = 96


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of its own, of few MiB."""
    require_capability("mount", os.geteuid() == 0, "run as root")
    folder = Path(tempfile.mkdtemp(prefix="cellwall-disk-"))
    options = f"size={_DISK_MB}m,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "cellwall-test", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)
    shutil.rmtree(folder)


def free_mb(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize // MIB


def filled(server: Server, disk: Path) -> int:
    """Let one tenant send what it can; return the MiB that are left."""
    alice = server.client()
    alice.post("/execute", json=_SLEEP)
    for size in (8 * MIB, MIB, 60_000, 2_000):
        while waiting(alice, size).status_code == 202:
            pass
    return free_mb(disk)


@pytest.mark.parametrize(
    ("tier", "floor", "is_served"),
    [
        ("stored_mb = 16", 1, True),
        ("stored_mb = 100000", 24, True),
        ("stored_mb = 100000", 1, False),
    ],
    ids=["quota", "floor", "control"],
)
def test_disk_is_not_filled_by_one_tenant(
    disk: Path, tier: str, floor: int, is_served: bool
) -> None:
    config = configuration(
        f"[tiers.default]\n{tier}\n", most_running=1, warm=[], stop_s=1, least_free_disk_mb=floor,
        store=f"sqlite:///{disk}/cellwall.db",
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="cellwall-state-"))
    server = start(folder, "--port", "0", config=config)
    try:
        left = filled(server, disk)
        # Less than the floor: a look at the disk may be a quarter of a second old.
        assert (left >= 4) is is_served
        assert serves_others(server) is is_served
        large = waiting(server.client(BOB), MIB)
        if floor > 1:  # of others, too, but they are told why
            assert (large.status_code, error_of(large)["code"]) == (507, "store_full")
    finally:
        server.stop()
        shutil.rmtree(folder)
