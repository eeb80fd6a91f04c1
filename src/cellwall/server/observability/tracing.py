"""Traces of requests and executions, as OpenTelemetry spans, if the operator names a collector.

Metrics are in `metrics`; `span_batches` sends the spans. Spans: the request; in it `admit` (until
its turn), `claim` (until a sandbox is there and the code is handed over), `run`, `answer`. They are
made after the fact, as values, from times that are kept anyway, so that the path of an execution
knows nothing of traces; without a collector this module is not even imported. A caller's W3C
`traceparent` becomes the parent. The invariant: a slow or dead collector costs spans, never
requests.

The SDK's tracer is not used: it starts threads in every child of a fork, and a process with two
threads may not enter a namespace, which is what the engine's probes fork for.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

import cellwall
from cellwall.server.observability.span_batches import SpanBatches

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from cellwall.server.core.request import Request

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SEND_S = 5
_CLOSE_S = 2.0
Phase = tuple[str, float, float]
"""Name of the phase, its begin and its end, in seconds since the epoch."""
_ids = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Begun:
    """A request's span, as far as it is known when the request begins."""

    context: SpanContext
    parent: SpanContext | None
    began_ns: int


class Tracing:
    """Makes spans and hands them to a collector."""

    def __init__(self, exporter: SpanExporter) -> None:
        """Use `opened` to make one for an address."""
        self._batches = SpanBatches(exporter)
        self._scope = InstrumentationScope("cellwall", cellwall.__version__)
        self._resource = Resource(
            {"service.name": "cellwall", "service.version": cellwall.__version__}
        )

    def begin(self, request: Request) -> None:
        """Begin the span of a request and keep it in `request.origin.span`."""
        parent = _parent(request.headers)
        context = _child_of(parent)
        request.origin.span = Begun(context, parent, time.time_ns())

    def answered(self, request: Request, method: str) -> None:
        """End the span of an answered request."""
        begun: Begun = request.origin.span
        if request.origin.ended_at is not None:
            answer = ("answer", request.origin.ended_at, time.time())
            self.phases(begun, (answer,), {"cellwall.request_id": request.request_id})
        facts: dict[str, str | int] = {
            "http.request.method": method,
            "http.route": request.route,
            "http.response.status_code": request.status,
            "cellwall.request_id": request.request_id,
        }
        if request.principal is not None:
            facts["cellwall.tenant"] = request.principal.tenant
        if request.execution_id is not None:
            facts["cellwall.execution_id"] = request.execution_id
        self._put(
            begun,
            f"{method} {request.route}".strip(),
            time.time_ns(),
            facts,
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR if request.status >= 500 else StatusCode.UNSET),
        )

    def phases(
        self, parent: Begun | None, phases: Iterable[Phase], facts: Mapping[str, str]
    ) -> None:
        """Add an execution's phases below `parent`; without one, as a trace of their own."""
        above = None if parent is None else parent.context
        trace = above or _child_of(None)
        for name, began_at, ended_at in phases:
            begun = Begun(_child_of(trace), above, int(began_at * 1e9))
            self._put(begun, name, int(max(began_at, ended_at) * 1e9), facts)

    def _put(
        self,
        begun: Begun,
        name: str,
        ended_ns: int,
        facts: Mapping[str, str | int],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status | None = None,
    ) -> None:
        if not begun.context.trace_flags.sampled:
            return  # the caller does not want this trace
        self._batches.put(
            ReadableSpan(
                name,
                context=begun.context,
                parent=begun.parent,
                resource=self._resource,
                attributes=facts,
                kind=kind,
                status=status or Status(StatusCode.UNSET),
                start_time=begun.began_ns,
                end_time=ended_ns,
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        """Send the remaining spans, for at most two seconds."""
        self._batches.close(_CLOSE_S)


def opened(endpoint: str) -> Tracing:
    """Return a `Tracing` that sends to `endpoint`, as OTLP over HTTP."""
    return Tracing(OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_S))


def _child_of(parent: SpanContext | None) -> SpanContext:
    trace_id = _ids.getrandbits(128) if parent is None else parent.trace_id
    flags = TraceFlags(TraceFlags.SAMPLED) if parent is None else parent.trace_flags
    return SpanContext(trace_id, _ids.getrandbits(64), is_remote=False, trace_flags=flags)


def _parent(headers: Mapping[str, str]) -> SpanContext | None:
    """Return the caller's span, or None if the request names none."""
    found = _PARENT.fullmatch(headers.get("traceparent", ""))
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    flags = TraceFlags(int(found[3], 16))
    return SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
