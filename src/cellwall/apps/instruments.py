"""Instruments: connect traces and metrics of a server with the parts that provide them.

Called by `apps.serve`. The instruments themselves are in `server.observability.metrics`,
`server.observability.tracing` and `server.audit.writer`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import cellwall
from cellwall.model.errors import HostUnsupported

if TYPE_CHECKING:
    from cellwall.apps.settings_loader import Loaded
    from cellwall.server.observability.logs import Log
    from cellwall.server.observability.tracing import Tracing
    from cellwall.server.state import State


def connect(state: State, log: Log | None) -> None:
    """Send traces to the endpoint of the settings, and let metrics read the parts' counters."""
    settings, observer = state.settings, state.observer
    if settings.otel_endpoint is not None:
        observer.tracing = _tracing(settings.otel_endpoint)
    if observer.metrics is None:
        return
    from cellwall.server.observability.readings import (
        engine_readings,
        log_readings,
        server_readings,
    )

    observer.metrics.readings += [engine_readings(state.engine.statistics), server_readings(state)]
    if log is not None:
        observer.metrics.readings.append(log_readings(log.sink))
    if state.store is not None:
        state.store.on_written = observer.metrics.store_writes.observe


def _tracing(endpoint: str) -> Tracing:
    try:
        from cellwall.server.observability import tracing
    except ModuleNotFoundError as error:
        raise HostUnsupported(
            "otel",
            f"traces: the package {error.name!r} is not installed",
            remedy="run: pip install 'cellwall[otel]', or remove otel_endpoint",
        ) from None
    return tracing.opened(endpoint)


def facts_of(loaded: Loaded) -> dict[str, object]:
    """Return the facts of a start for the audit; settings as a digest, which shows a change."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot_id = ""
    settings = repr((loaded.server, loaded.engine, loaded.keys))
    return {
        "version": cellwall.__version__,
        "pid": os.getpid(),
        "boot_id": boot_id,
        "settings": hashlib.sha256(settings.encode()).hexdigest(),
    }
