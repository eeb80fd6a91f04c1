"""The one page of the metrics' own listener: ASGI, strict about Host, key and path.

The listener is `apps.metrics_listener`, the numbers are in `metrics`. The invariant: nothing of the
API can be reached here, and nothing here through the API.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from cellwall.server.auth.keys import digest_of
from cellwall.server.http.guards import answers_to, name_of_host, read_headers

if TYPE_CHECKING:
    from cellwall.server.observability.metrics import Page

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

_PATH = "/metrics"
_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """The ASGI application that serves `/metrics`."""

    def __init__(
        self, metrics: Page, hosts: frozenset[str], token_sha256: str | None = None
    ) -> None:
        """Answer to the names `hosts`; with `token_sha256`, only to requests with that token."""
        self._metrics = metrics
        self._hosts = hosts
        self._token_sha256 = token_sha256

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"metrics: {scope['type']} is not served")
        status, reason = self._check(scope)
        if status != 200:
            await _answer(send, status, reason, b"text/plain; charset=utf-8")
            return
        self._metrics.read()
        # Rendering takes milliseconds, and the loop has executions to look after.
        page = await asyncio.to_thread(self._metrics.page)
        await _answer(send, 200, page, _TYPE)

    def _check(self, scope: Message) -> tuple[int, bytes]:
        headers, fault = read_headers(scope["headers"])
        if fault is not None:
            return 400, b"bad headers\n"
        if not answers_to(self._hosts, name_of_host(headers.get("host", ""))):
            return 403, b"this server does not answer to that name\n"
        if not self._is_allowed(headers.get("authorization", "")):
            return 401, b"a bearer token is needed\n"
        if scope["path"] != _PATH:
            return 404, b"there is only /metrics\n"
        if scope["method"] != "GET":
            return 405, b"GET only\n"
        return 200, b""

    def _is_allowed(self, authorization: str) -> bool:
        if self._token_sha256 is None:
            return True
        kind, _, token = authorization.partition(" ")
        is_same = hmac.compare_digest(digest_of(token.strip()), self._token_sha256)
        return kind.lower() == "bearer" and is_same


async def _answer(send: Send, status: int, body: bytes, media_type: bytes) -> None:
    headers = [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status != 200:
        headers.append((b"connection", b"close"))  # a body may not have been read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
