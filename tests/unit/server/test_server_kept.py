"""What each tenant has on the store's disk: counted, bounded, and forgotten with what it was of."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.engine.scheduling.admission import Cost
from cellwall.engine.scheduling.quotas import Quotas, Tenants
from cellwall.model.errors import QuotaExceeded, UsageError
from cellwall.server.executions import disk_quota as module
from cellwall.server.executions.disk_quota import FREE_BYTES, Kept
from cellwall.store.records.errors import StoreFull
from cellwall.store.records.rows import KeptRow

MIB = 1 << 20
RETENTION_S = 600.0


class Clock:
    def __init__(self) -> None:
        self.now = 3000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "steady", made)
    return made


def counting(stored_mb: int | None = 4) -> tuple[Kept, Tenants]:
    tenants = Tenants({"default": Quotas(stored_mb=stored_mb)})
    return Kept(tenants, RETENTION_S, None, 0), tenants


def test_what_waits_counts_until_it_begins(clock: Clock) -> None:
    kept, tenants = counting()
    for name in ("a", "b", "c"):
        kept.check("alice", MIB)
        kept.wait(name, "alice", MIB)
    kept.check("alice", MIB)
    with pytest.raises(QuotaExceeded) as refused:
        kept.check("alice", MIB + 1)
    assert refused.value.quota == "stored_mb"
    assert "3 of 4 MiB" in refused.value.message
    kept.check("bob", 4 * MIB)
    for name in ("a", "a", "nope"):  # idempotent
        kept.waits_no_more(name)
    assert tenants.use("alice").waiting_bytes == 2 * MIB
    kept.check("alice", 2 * MIB)
    assert tenants.use("alice").as_json()["stored_mb"] == 2


def test_what_can_never_wait_is_wrong_use(clock: Clock) -> None:
    kept, _ = counting()
    with pytest.raises(UsageError, match="never"):
        kept.check("alice", 4 * MIB + 1)


def test_what_is_kept_counts_until_it_is_forgotten(clock: Clock) -> None:
    kept, tenants = counting()
    for at in (2990.0, 3000.0):
        kept.keep("alice", 2 * MIB + FREE_BYTES, at)
    kept.keep("alice", FREE_BYTES, clock.now)  # what everything leaves is free
    kept.check("alice", 0)
    with pytest.raises(QuotaExceeded) as refused:
        kept.check("alice", 1)
    assert refused.value.retry_after_s == pytest.approx(600, abs=15)
    clock.now += RETENTION_S - 1
    kept.expire()
    assert tenants.use("alice").kept_bytes == 4 * MIB
    clock.now += 6
    kept.expire()
    assert tenants.use("alice").kept_bytes == 2 * MIB
    clock.now += 15
    kept.expire()
    assert tenants.use("alice").kept_bytes == 0


def test_tenant_with_too_much_kept_gets_no_turn_until_then(clock: Clock) -> None:
    """Control: what waits itself is no reason not to run it."""
    kept, tenants = counting()
    use = tenants.use("alice")
    kept.wait("a", "alice", 4 * MIB)
    assert use.may_run(Cost(1, 1, 1))
    kept.keep("alice", 5 * MIB, clock.now)
    assert not use.may_run(Cost(1, 1, 1))
    assert tenants.use("bob").may_run(Cost(1, 1, 1))
    clock.now += RETENTION_S + 15
    kept.expire()
    assert use.may_run(Cost(1, 1, 1))


def test_what_an_earlier_server_kept_is_forgotten_in_its_time(clock: Clock) -> None:
    kept, tenants = counting()
    kept.restore([KeptRow("alice", 2990.0, MIB), KeptRow("alice", 2500.0, MIB)])
    kept.keep("alice", MIB + FREE_BYTES, clock.now)
    assert tenants.use("alice").kept_bytes == 3 * MIB
    clock.now = 2500.0 + RETENTION_S + 16
    kept.expire()
    assert tenants.use("alice").kept_bytes == 2 * MIB


def test_no_bound_where_the_tier_says_none(clock: Clock) -> None:
    kept, tenants = counting(None)
    kept.keep("alice", 10_000 * MIB, clock.now)
    kept.check("alice", 10_000 * MIB)
    assert tenants.use("alice").may_run(Cost(1, 1, 1))


def test_large_things_are_refused_while_the_disk_has_little_left(
    clock: Clock, tmp_path: Path
) -> None:
    """Control: small ones, and those of a disk with room."""
    tenants = Tenants()
    full = Kept(tenants, RETENTION_S, tmp_path, 10**9)
    full.check("alice", 64 * 1024)
    with pytest.raises(StoreFull, match="least_free_disk_mb"):
        full.check("alice", 64 * 1024 + 1)
    full.keep("mallory", 100 * MIB, clock.now)
    with pytest.raises(StoreFull):
        full.check("mallory", 0)
    Kept(tenants, RETENTION_S, tmp_path, 1).check("alice", MIB)
    Kept(tenants, RETENTION_S, None, 10**9).check("alice", MIB)
