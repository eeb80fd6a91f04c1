"""Counts that other parts keep for themselves and that metrics read at the moment of a scrape.

Put together by `apps.instruments`. Counts for the metrics alone are in `metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cellwall.server.observability.metrics import gauge, total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from cellwall.engine.engine import EngineStatistics
    from cellwall.server.observability.log_sink import Sink
    from cellwall.server.state import State


def engine_readings(statistics: Callable[[], EngineStatistics]) -> Callable[[], Iterator[Metric]]:
    """Return the reading of an engine's own counts."""

    def read() -> Iterator[Metric]:
        now = statistics()
        pool = now.pool
        yield gauge("sandboxes", "Live sandboxes.", now.sandboxes)
        yield gauge("sandboxes_paused", "Live sandboxes that are paused.", now.paused)
        words = "Live sandboxes that are hibernated."
        yield gauge("sandboxes_hibernated", words, now.hibernated)
        yield gauge("hibernated_bytes", "Bytes of disk that these take.", now.hibernated_bytes)
        yield gauge(
            "pool",
            "Sandboxes of the warm pool.",
            {"parked": pool.parked, "starting": pool.starting, "destroying": pool.destroying},
            "state",
        )
        copies = now.copies
        made = {"fork": copies.forks, "restore": copies.restores}
        yield total("copies", "Sandboxes made as copies of others.", made, "by")
        yield total("snapshots_made", "Snapshots that were made.", copies.snapshots_made)
        yield gauge("snapshots", "Snapshots that are kept.", copies.snapshots)
        yield gauge("snapshots_bytes", "Bytes of these snapshots.", copies.snapshots_bytes)
        turns = {"hibernated": copies.hibernations, "back": copies.wakes}
        yield total("hibernations", "Hibernations of sandboxes, and their ends.", turns, "turn")
        words = "Copies and snapshots that were not made, by the code of the error."
        yield total("copies_refused", words, copies.refused, "cause")
        claims = {"parked": pool.claims_parked, "started": pool.claims_started}
        yield total("claims", "Claims of a sandbox: parked, or started for it.", claims, "from")
        yield total("pool_failures", "Sandboxes that could not be started.", pool.failed)
        yield total("background_failures", "Failed work behind answers.", now.background_failures)

    return read


def server_readings(state: State) -> Callable[[], Iterator[Metric]]:
    """Return the reading of the counts of the server's parts."""

    def read() -> Iterator[Metric]:
        executions = state.executions
        yield gauge("executions_open", "Executions that have not ended.", executions.running)
        yield total("server_failures", "Failed work behind requests.", state.tasks.failed)
        for name in ("running", "queued", "sandboxes", "memory_mb"):
            words = f"By tier of tenants: {name}."
            yield gauge(f"tier_{name}", words, _by_tier(state, name), "tier")
        if state.store is not None:
            now = state.store.statistics()
            yield gauge("store_waiting", "Writes that wait for their turn.", now.waiting)
            yield total("store_writes", "Writes to the store.", now.writes)
            yield total("store_transactions", "Transactions they shared.", now.transactions)
            yield total("store_refused", "Writes that failed.", now.refused)
            is_broken = float(now.is_journal_broken)
            yield gauge("store_journal_broken", "1 once the journal has failed.", is_broken)
            unwritten = state.ledger.unwritten
            yield gauge("ends_unwritten", "Ends that wait for the store.", unwritten)

    return read


def _by_tier(state: State, name: str) -> dict[str, float]:
    """Return the sum of a use over each tier's tenants; tenants themselves are no labels."""
    found: dict[str, float] = {}
    for each in state.queue.tenants.all_json():
        found[each["tier"]] = found.get(each["tier"], 0) + each["use"][name]
    return found


def log_readings(sink: Sink) -> Callable[[], Iterator[Metric]]:
    """Return the reading of the log's queue."""

    def read() -> Iterator[Metric]:
        yield total("log_dropped", "Log records nobody will read.", sink.dropped)
        yield gauge("log_waiting", "Log records that are not yet written.", sink.waiting)

    return read
