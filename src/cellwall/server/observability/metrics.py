"""Counters and histograms of the whole server, in Prometheus's form.

Filled by `observer` on the event loop alone, so without a lock; read by `metrics_page`, on an
address of its own; imported only where metrics are on. A tenant's view is `/stats`. The invariants:
counting costs less than a microsecond (the client library's own counters cost several) and never
waits; the number of series is bounded, whatever callers send (`labels`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from cellwall.server.observability.labels import Labels

if TYPE_CHECKING:
    from cellwall.model.outcome import Outcome
    from cellwall.server.observability.redaction import Redactor

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BYTES = tuple(2.0**power for power in range(22, 36, 2))


class Counts:
    """A counter with its series."""

    def __init__(self, name: str, words: str, *labels: str) -> None:
        """The metric's name is `name` with the prefix `cellwall_`."""
        self._about = (f"cellwall_{name}", words)
        self._labels = labels
        self._series: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Add `by` to the series of `labels`."""
        self._series[labels] = self._series.get(labels, 0.0) + by

    def read(self) -> Metric:
        """Return the counter as it is now."""
        family = CounterMetricFamily(*self._about, labels=self._labels)
        for labels, value in self._series.items():
            family.add_metric(labels, value)
        return family


class Spread:
    """A histogram with its series."""

    def __init__(
        self, name: str, words: str, *labels: str, bounds: tuple[float, ...] = _SECONDS
    ) -> None:
        """The metric's name is `name` with the prefix `cellwall_`."""
        self._about = (f"cellwall_{name}", words)
        self._labels = labels
        self._bounds = bounds
        self._series: dict[tuple[str, ...], list[float]] = {}
        if not labels:
            self._series[()] = self._new()

    def _new(self) -> list[float]:
        """Return an empty series: a count per bound, a count above all bounds, and the sum."""
        return [0] * (len(self._bounds) + 2)

    def observe(self, value: float, *labels: str) -> None:
        """Add `value` to the series of `labels`."""
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = self._new()
        found[bisect_left(self._bounds, value)] += 1
        found[-1] += value

    def read(self) -> Metric:
        """Return the histogram as it is now."""
        family = HistogramMetricFamily(*self._about, labels=self._labels)
        names = [*map(str, self._bounds), "+Inf"]
        for labels, found in self._series.items():
            sums = accumulate(found[:-1])
            family.add_metric(labels, list(zip(names, sums, strict=True)), found[-1])
        return family


Reading = Callable[[], Iterable[Metric]]
"""Reads counts kept by another part at the moment of a scrape; made of `gauge` and `total`."""


class _Readings(Collector):
    def __init__(self) -> None:
        self.found: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        return iter(self.found)

    def describe(self) -> Iterator[Metric]:
        return iter(())  # without it the registry would collect while the server is put together


class Page:
    """Metrics of one process, which a page shows: its counters and histograms, and `readings`."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.readings: list[Reading] = []
        self._read = _Readings()
        registry.register(self._read)

    def read(self) -> None:
        """Read the counts of this and other parts; on the event loop, where they are counted."""
        mine = [each.read() for each in vars(self).values() if isinstance(each, (Counts, Spread))]
        self._read.found = [*mine, *(found for reading in self.readings for found in reading())]

    def page(self) -> bytes:
        """Return all metrics as of the last `read`, as text of format 0.0.4."""
        return generate_latest(self.registry)


class Metrics(Page):
    """All metrics of one server."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self.template = Labels(redactor)
        self.tier = Labels(redactor)
        kind = ("template", "runtime")
        self.requests = Spread("request_seconds", "From headers to the end.", "method", "route")
        self.statuses = Counts("requests", "Requests.", "method", "route", "status")
        self._verdicts = Counts("executions", "Ended programs.", *kind, "verdict")
        self._wall = Spread("execution_seconds", "Wall time of programs.", *kind)
        self._memory = Spread(
            "memory_peak_bytes", "Highest memory of programs.", *kind, bounds=_BYTES
        )
        self._cpu = Counts("cpu_seconds", "CPU time of programs.", *kind)
        self._cut = Counts("output_dropped_bytes", "Output beyond the caps, not kept.")
        self.phases = Spread("phase_seconds", "Parts of an execution: admit, claim, run.", "phase")
        self.waits = Spread("queue_seconds", "Until its turn, for a tier.", "tier")
        self.store_writes = Spread("store_write_seconds", "Until a change is durable.")
        self.refusals = Counts("refusals", "Refused requests, by code.", "code")
        self.alerts = Counts("alerts", "Unusual runs that a rule flagged.", "rule")
        self.audited = Counts("audit_records", "Audit records.", "result")
        self.reads = Counts("file_reads", "Reads of files in sandboxes.")
        self.swept = Counts("swept", "Leftovers that a sweep removed.", "kind")

    def ended(self, template: str, outcome: Outcome) -> None:
        """Count one program's end."""
        shown, runtime = self.template(template), outcome.isolation.runtime
        usage, cut = outcome.usage, outcome.truncated
        self._verdicts.add(shown, runtime, outcome.verdict.value)
        self._wall.observe(usage.wall_s, shown, runtime)
        self._memory.observe(usage.memory_peak_bytes, shown, runtime)
        self._cpu.add(shown, runtime, by=usage.cpu_s)
        if cut:
            self._cut.add(by=cut.stdout + cut.stderr + cut.display)


def gauge(name: str, words: str, values: Mapping[str, float] | float, label: str = "") -> Metric:
    """Return a metric that goes up and down: one value, or one per value of `label`."""
    return _filled(GaugeMetricFamily, name, words, values, label)


def total(name: str, words: str, values: Mapping[str, float] | float, label: str = "") -> Metric:
    """Return a metric that only goes up and is counted elsewhere."""
    return _filled(CounterMetricFamily, name, words, values, label)


def _filled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    words: str,
    values: Mapping[str, float] | float,
    label: str,
) -> Metric:
    if not isinstance(values, Mapping):
        return kind(f"cellwall_{name}", words, value=values)
    family = kind(f"cellwall_{name}", words, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family
