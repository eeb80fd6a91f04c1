"""Observation of requests and runs: they are logged, counted, traced, and judged by rules.

Called by `guards` for every request and by `executions.observer` and `routes.commands` for every
end. It only observes; the audit (`writer`) can stop an action. The invariant: nothing here waits,
raises into the observed code, or costs more than some microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cellwall.server.observability.alert_rules import Alert, Rule, Rules
from cellwall.server.observability.labels import Labels
from cellwall.server.observability.logs import logger

if TYPE_CHECKING:
    from cellwall.model.outcome import Outcome
    from cellwall.runtimes.base import SweepReport
    from cellwall.server.core.request import Request
    from cellwall.server.core.request_context import Origin
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.executions.job import Job
    from cellwall.server.observability.metrics import Metrics
    from cellwall.server.observability.redaction import Redactor
    from cellwall.server.observability.tracing import Phase, Tracing

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WS")
_QUIET = frozenset({"/node", "/node/wants", "/health"})
"""Routes that monitors poll; logged at level debug."""
_log = logger("cellwall.request")
_sweeps = logger("cellwall.sweep")
_alerts = logger("cellwall.alert")


class Observer:
    """Feeds log, metrics, traces and rules; see the module."""

    def __init__(self, settings: ServerSettings, redactor: Redactor) -> None:
        """Metrics are kept only if the settings give them a port."""
        self.redactor = redactor
        self.metrics = None if settings.metrics_port is None else _metrics(redactor)
        self.tracing: Tracing | None = None
        self.tier_of: Callable[[str], str] = lambda _: "default"
        """Return the name of a tenant's tier."""
        self.on_alert: list[Callable[[Alert], None]] = []
        """Called with every alert that a rule raises: by audit and webhook."""
        self.rules = Rules(rules_of(settings), self._flagged)
        self._method = Labels(redactor, _METHODS)

    # -- requests --------------------------------------------------------------------------

    def request(self, request: Request, seconds: float) -> None:
        """Log and count one answered request; its status is 0 if the client is gone."""
        method = "WS" if request.scope["type"] == "websocket" else request.scope["method"]
        route = request.route or "none"
        write = _log.debug if route in _QUIET else _log.info
        write(
            "request",
            method=method,
            route=route,
            status=request.status,
            ms=round(seconds * 1000, 3),
            tenant=None if request.principal is None else request.principal.tenant,
            request_id=request.request_id,
            execution_id=request.execution_id,
        )
        self._counted(request, method, route, seconds)

    def inside(self, request: Request, seconds: float) -> None:
        """Count one answered request that the server made for a caller; not logged."""
        self._counted(request, request.scope["method"], request.route or "none", seconds)

    def _counted(self, request: Request, method: str, route: str, seconds: float) -> None:
        if self.metrics is not None:
            shown = self._method(method)
            self.metrics.requests.observe(seconds, shown, route)
            self.metrics.statuses.add(shown, route, _status_of(request))
        if self.tracing is not None:
            self.tracing.answered(request, method)

    def refused(self, request: Request, status: int, code: str) -> None:
        """Count a refused request: no key, no permission, no capacity, not the caller's object."""
        if self.metrics is not None:
            self.metrics.refusals.add(code)
        if status in {401, 403, 404, 429} and code != "file":
            self.rules.note(who_of(request), "refusal")

    # -- runs ------------------------------------------------------------------------------

    def ended(self, tenant: str, template: str, outcome: Outcome) -> None:
        """Count an ended program or command."""
        self.rules.ended(tenant, outcome.verdict)
        if self.metrics is not None:
            self.metrics.ended(template, outcome)

    def phased(self, record: Job, phases: Sequence[Phase], origin: Origin | None) -> None:
        """Add the phases of an ended execution; `origin` is the request it came from, if known."""
        if self.metrics is not None:
            for name, began_at, ended_at in phases:
                seconds = max(0.0, ended_at - began_at)
                self.metrics.phases.observe(seconds, name)
                if name == "admit":
                    tier = self.metrics.tier(self.tier_of(record.owner))
                    self.metrics.waits.observe(seconds, tier)
        if self.tracing is not None:
            span = None if origin is None else origin.span
            self.tracing.phases(span, phases, {"cellwall.execution_id": record.id})

    def close(self) -> None:
        """Send the remaining spans to the collector, for some seconds at most; blocks."""
        if self.tracing is not None:
            self.tracing.close()

    def created(self, tenant: str) -> None:
        """Count a sandbox that was asked for."""
        self.rules.note(tenant, "creation")

    def swept(self, report: SweepReport) -> None:
        """Log and count the result of a sweep; each object it removed had leaked."""
        for kind, count in report.removed.items():
            if not count:
                continue
            _sweeps.warning("leftovers removed", kind=kind, count=count)
            if self.metrics is not None:
                self.metrics.swept.add(kind, by=count)
        if report.kept:
            _sweeps.warning("leftovers kept", names=list(report.kept))

    def _flagged(self, alert: Alert) -> None:
        _alerts.warning(
            "unusual", rule=alert.rule, who=alert.who, count=alert.count, window_s=alert.window_s
        )
        if self.metrics is not None:
            self.metrics.alerts.add(alert.rule)
        for told in self.on_alert:
            told(alert)


def _metrics(redactor: Redactor) -> Metrics:
    from cellwall.server.observability.metrics import Metrics

    return Metrics(redactor)


def _status_of(request: Request) -> str:
    """Return the status for a label; only its class if a server inside a sandbox chose it."""
    return f"{request.status // 100}xx" if request.is_passed_on else str(request.status)


def who_of(request: Request) -> str:
    """Return the originator of a request: a tenant, or an address if there was no valid key."""
    if request.principal is not None:
        return request.principal.tenant
    client = request.scope.get("client")
    return f"address:{client[0] if client else 'unix'}"


def rules_of(settings: ServerSettings) -> tuple[Rule, ...]:
    """Return the rules that the operator configured."""
    window_s = settings.flag_window_s
    return (
        Rule("limit_hits", "limit", settings.flag_limit_hits, window_s),
        Rule("denied_syscalls", "syscall", settings.flag_syscalls, window_s),
        Rule("creations", "creation", settings.flag_creations, window_s),
        Rule("refusals", "refusal", settings.flag_refusals, window_s),
    )
