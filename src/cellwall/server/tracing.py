"""Traces of requests and executions, through OpenTelemetry, if the operator names a collector.

Not metrics. Spans: the request; in it `admit` (until its turn), `claim` (until a sandbox is there
and the code is handed over), `run`, `answer`. They are made after the fact from times that are
kept anyway, so that the way of an execution knows nothing of traces; without a collector nothing
here is even imported. A W3C `traceparent` of the caller's is the parent. The invariant: a
collector that is slow or gone costs spans, never requests.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.model.errors import HostUnsupported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from cellwall.server.call import Call

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_QUEUE = 2048
_CLOSE_MS = 2000
Phase = tuple[str, float, float]
"""Its name, and begin and end in seconds since the epoch."""


class Tracing:
    """Makes spans and hands them to a collector in batches, from a thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        """Use `opened` to have one for an address."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create(
            {"service.name": "cellwall", "service.version": cellwall.__version__}
        )
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE))
        self._tracer = self._provider.get_tracer("cellwall")

    def begin(self, call: Call) -> None:
        """A request begins; its span is `call.origin.span`."""
        from opentelemetry.trace import SpanKind

        call.origin.span = self._tracer.start_span(
            "request", context=_parent(call.headers), kind=SpanKind.SERVER
        )

    def answered(self, call: Call, method: str) -> None:
        """It has been answered."""
        span = call.origin.span
        if span is None:
            return
        span.update_name(f"{method} {call.route}".strip())
        span.set_attributes(
            {
                "http.request.method": method,
                "http.route": call.route,
                "http.response.status_code": call.status,
                "cellwall.request_id": call.request_id,
            }
        )
        if call.principal is not None:
            span.set_attribute("cellwall.tenant", call.principal.tenant)
        if call.execution_id is not None:
            span.set_attribute("cellwall.execution_id", call.execution_id)
        if call.origin.ended_at is not None:
            answer = ("answer", call.origin.ended_at, time.time())
            self.phases(span, (answer,), {"cellwall.request_id": call.request_id})
        if call.status >= 500:
            from opentelemetry.trace import Status, StatusCode

            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def phases(self, parent: Any, phases: Iterable[Phase], attributes: dict[str, str]) -> None:  # noqa: ANN401 - a span; the package is optional
        """Add the parts of an execution below `parent`, or as traces of their own if it is None."""
        from opentelemetry.trace import set_span_in_context

        context = None if parent is None else set_span_in_context(parent)
        for name, began_at, ended_at in phases:
            span = self._tracer.start_span(
                name, context=context, attributes=attributes, start_time=int(began_at * 1e9)
            )
            span.end(end_time=int(max(began_at, ended_at) * 1e9))

    def close(self) -> None:
        """Send what is left, for at most two seconds."""
        self._provider.force_flush(_CLOSE_MS)
        self._provider.shutdown()


def _parent(headers: Any) -> Any:  # noqa: ANN401 - a context; the package is optional
    """Return the caller's trace as a context, or None."""
    given = headers.get("traceparent", "")
    if not _PARENT.fullmatch(given):
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": given, "tracestate": headers.get("tracestate", "")[:512]}
    return TraceContextTextMapPropagator().extract(carrier)


def opened(endpoint: str) -> Tracing:
    """Return traces that go to `endpoint`, as OTLP over HTTP."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError as error:
        raise HostUnsupported(
            "otel",
            f"traces: the package {error.name!r} is not installed",
            remedy="run: pip install 'cellwall[otel]', or remove otel_endpoint",
        ) from None
    return Tracing(OTLPSpanExporter(endpoint=endpoint, timeout=5))
