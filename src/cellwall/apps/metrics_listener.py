"""Metrics listener: a separate socket for the metrics, on an address of its own.

Called by `apps.serve`; the page is `server.http.metrics_page`. The invariant: it exists only while
the server does, and is reachable from other machines only with a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import uvicorn

from cellwall.model.errors import UsageError
from cellwall.server.core.settings import LOOPBACK
from cellwall.server.http.guards import names_of
from cellwall.server.http.metrics_page import MetricsPage
from cellwall.server.http.uvicorn_protocol import Connection
from cellwall.server.observability.logs import logger

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.observability.metrics import Page
    from cellwall.surface.shared.tasks import Tasks

_CONNECTIONS = 16
_log = logger("cellwall.metrics")


def check_metrics_exposure(settings: ServerSettings) -> None:
    """Refuse to show metrics to other machines without a token."""
    is_off = settings.metrics_port is None or settings.metrics_host in LOOPBACK
    if not is_off and settings.metrics_token_sha256 is None:
        raise UsageError(
            f"serve: metrics on {settings.metrics_host} could be read by everybody",
            remedy="set metrics_token_sha256, or leave metrics_host at 127.0.0.1",
        )


class _Listener(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the server."""
        yield


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise UsageError(
            f"serve: bind metrics {host}:{port}: {error.strerror}",
            remedy="set another metrics_port or metrics_host",
        ) from None
    return sock


@contextlib.asynccontextmanager
async def listening(
    settings: ServerSettings, metrics: Page | None, tasks: Tasks
) -> AsyncIterator[None]:
    """Answer scrapes while the block runs, if the settings enable it."""
    if settings.metrics_port is None or metrics is None:
        yield
        return
    sock = _bound(settings.metrics_host, settings.metrics_port)
    hosts = names_of(settings.metrics_host, settings.allowed_hosts)
    page = MetricsPage(metrics, hosts, settings.metrics_token_sha256)
    server = _Listener(
        uvicorn.Config(
            page,
            loop="none",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=int(settings.keep_alive_s),
            timeout_graceful_shutdown=1,
        )
    )
    task = tasks.spawn(server.serve(sockets=[sock]))
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _log.info("metrics", address=f"http://{shown}:{port}/metrics")
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait([task])
        sock.close()
