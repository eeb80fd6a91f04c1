"""Hands spans to an exporter in batches, from a thread.

Spans are made by `tracing`, whose docstring says why the SDK's own processor cannot be used. The
invariant: `put` never waits; spans beyond the queue, and those that the exporter did not take, are
dropped, counted and logged.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace.export import SpanExportResult

from cellwall.server.observability.logs import logger

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

_MOST = 2048
_BATCH = 512
_EVERY_S = 2.0
_log = logger("cellwall.traces")


class SpanBatches:
    """Queue of spans and the thread that exports them; see the module."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._spans: deque[ReadableSpan] = deque()
        self._is_closing = threading.Event()
        self.dropped = 0
        self._said = 0
        self._thread = threading.Thread(target=self._work, name="cellwall-traces", daemon=True)
        self._thread.start()

    def put(self, span: ReadableSpan) -> None:
        """Take a span, or count it as dropped."""
        if len(self._spans) >= _MOST:
            self.dropped += 1
        else:
            self._spans.append(span)

    def _work(self) -> None:
        is_closing = False
        while not is_closing:
            is_closing = self._is_closing.wait(_EVERY_S)
            while self._spans:
                self._export([self._spans.popleft() for _ in range(min(_BATCH, len(self._spans)))])

    def _export(self, batch: list[ReadableSpan]) -> None:
        try:
            is_sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - the exporter's trouble must not end the thread
            is_sent = False
            _log.warning("spans not sent", reason=str(error))
        if not is_sent:
            self.dropped += len(batch)
        if self.dropped > self._said:
            _log.warning("spans dropped", count=self.dropped - self._said)
            self._said = self.dropped

    def close(self, wait_s: float) -> None:
        """Send the remaining spans, for at most `wait_s` seconds."""
        self._is_closing.set()
        self._thread.join(wait_s)
