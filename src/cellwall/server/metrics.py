"""Counters and histograms of the whole server, in Prometheus's form.

Filled by `watching` from the event loop; read by `metrics_listener`, on an address of its own. Not
a tenant's view (`/stats`). The invariants: counting costs microseconds and never waits; the number
of series is bounded, whatever callers send: labels are names of ours or of the operator's, at most
`MOST_VALUES` of a kind, and never secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from cellwall.model.outcome import Outcome
    from cellwall.server.redaction import Redactor

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each series

MOST_VALUES = 64
"""Different values of one label; later ones are counted as `other`."""
OTHER = "other"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BYTES = tuple(2.0**power for power in range(22, 36, 2))


class Labels:
    """Bounds the values of one label."""

    def __init__(self, redactor: Redactor, known: Iterable[str] = ()) -> None:
        """`known` values always have their own series."""
        self._redactor = redactor
        self._shown = {value: value for value in known}

    def __call__(self, value: str) -> str:
        """Return what stands for `value` in a label."""
        shown = self._shown.get(value)
        if shown is None:
            if len(self._shown) >= MOST_VALUES:
                return OTHER
            shown = self._shown[value] = self._redactor.clean(value)[:80]
        return shown


class Counts:
    """A counter with its series."""

    def __init__(self, registry: CollectorRegistry, name: str, words: str, *labels: str) -> None:
        """Its name gets `cellwall_` in front."""
        self._family = Counter(f"cellwall_{name}", words, labels, registry=registry)
        self._series: dict[tuple[str, ...], Counter] = {} if labels else {(): self._family}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Count."""
        found = self._series.get(labels)
        if found is None:  # kept, because the library's own look-up costs several times this one
            found = self._series[labels] = self._family.labels(*labels)
        found.inc(by)


class Spread:
    """A histogram with its series."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        words: str,
        *labels: str,
        bounds: tuple[float, ...] = _SECONDS,
    ) -> None:
        """Its name gets `cellwall_` in front."""
        name = f"cellwall_{name}"
        self._family = Histogram(name, words, labels, registry=registry, buckets=bounds)
        self._series: dict[tuple[str, ...], Histogram] = {} if labels else {(): self._family}

    def observe(self, value: float, *labels: str) -> None:
        """Count `value` in."""
        found = self._series.get(labels)
        if found is None:
            found = self._series[labels] = self._family.labels(*labels)
        found.observe(value)


Reading = Callable[[], Iterable[Metric]]
"""Reads what others keep, at the moment of a scrape; made of `gauge` and `total`."""


class _Readings(Collector):
    def __init__(self) -> None:
        self.found: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        return iter(self.found)

    def describe(self) -> Iterator[Metric]:
        return iter(())  # without it the registry would collect while the server is put together


class Metrics:
    """All of one server's."""

    def __init__(self, redactor: Redactor) -> None:
        """Everything is at zero."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.readings: list[Reading] = []
        self._read = _Readings()
        registry.register(self._read)
        self.template = Labels(redactor)
        self.tier = Labels(redactor)
        self.requests = Spread(
            registry, "request_seconds", "From headers to the end.", "method", "route"
        )
        self.statuses = Counts(registry, "requests", "Requests.", "method", "route", "status")
        self._verdicts = Counts(
            registry, "executions", "Ended programs.", "template", "runtime", "verdict"
        )
        self._wall = Spread(
            registry, "execution_seconds", "Wall time of programs.", "template", "runtime"
        )
        self._memory = Spread(
            registry,
            "memory_peak_bytes",
            "Highest memory of programs.",
            "template",
            "runtime",
            bounds=_BYTES,
        )
        self._cpu = Counts(registry, "cpu_seconds", "CPU time of programs.", "template", "runtime")
        self._cut = Counts(registry, "output_dropped_bytes", "Output beyond the caps, not kept.")
        self.phases = Spread(
            registry, "phase_seconds", "Parts of an execution: admit, claim, run.", "phase"
        )
        self.waits = Spread(registry, "queue_seconds", "Until its turn, for a tier.", "tier")
        self.store_writes = Spread(registry, "store_write_seconds", "Until a change is durable.")
        self.refusals = Counts(registry, "refusals", "Refused requests, by code.", "code")
        self.alerts = Counts(registry, "alerts", "Unusual runs that a rule flagged.", "rule")
        self.audited = Counts(registry, "audit_records", "Audit records.", "result")
        self.reads = Counts(registry, "file_reads", "Reads of files in sandboxes.")
        self.swept = Counts(registry, "swept", "Leftovers that a sweep removed.", "kind")

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

    def read(self) -> None:
        """Ask those who count by themselves; on the event loop, which is theirs."""
        self._read.found = [metric for reading in self.readings for metric in reading()]

    def page(self) -> bytes:
        """Return everything, with what was last read, as text of format 0.0.4."""
        return generate_latest(self.registry)


def gauge(name: str, words: str, values: Mapping[str, float] | float, label: str = "") -> Metric:
    """Return a metric that goes up and down: one value, or one for each value of `label`."""
    return _filled(GaugeMetricFamily, name, words, values, label)


def total(name: str, words: str, values: Mapping[str, float] | float, label: str = "") -> Metric:
    """Return a metric that only goes up, kept elsewhere."""
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
