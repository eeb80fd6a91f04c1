"""Face: how one protocol says who asks, and the shape in which its clients are refused.

`guards` checks every request in the same order, whatever its protocol; what differs between our own
protocol and those of others is here and in `apps.doors`. The invariant: a face tells what was
presented and how to answer, never whether a request is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cellwall.model.errors import NotFound
from cellwall.server.core.errors import envelope, headers_of, status_of
from cellwall.server.port_proxy.headers import port_token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.server.auth.keys import Principal
    from cellwall.server.auth.tokens import Tokens
    from cellwall.server.core.request import Request

Find = Callable[[str], "Principal | None"]
"""Function that returns the caller with a key, or None."""
PUBLIC = frozenset({"/health", "/openapi.json", "/docs", "/docs/style.css"})
_TOKEN_PATHS = re.compile(r"/signed/|/sandboxes/[a-z0-9]+/ports/")
"""Paths where a token of this server may stand for a key; their handlers check it."""


class Face(Protocol):
    """What `guards` asks of a protocol."""

    has_checked_hosts: bool
    """Whether what is in front has checked the names and origins that clients use."""

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return who asks; None: no key was presented, or one that is not accepted."""

    def is_open(self, request: Request) -> bool:
        """Report whether the request needs no key, or carries a token that its handler checks."""

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error, before anything else was answered."""


class OwnFace:
    """The face of our own protocol."""

    has_checked_hosts = False

    def __init__(self, tokens: Tokens) -> None:
        """`tokens` are those that this server signs."""
        self._tokens = tokens

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return the caller whose key is in `X-API-Key`, `Authorization` or a subprotocol."""
        presented = presented_key(request)
        return None if presented is None else find(presented)

    def is_open(self, request: Request) -> bool:
        """Report whether the path is public, or a token may stand for a key there."""
        path: str = request.scope["path"]
        if path in PUBLIC:
            return True
        if not _TOKEN_PATHS.match(path):
            return False
        return presented_key(request) is None or self._is_of_inside(request)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with the error envelope."""
        status, headers = status_of(error), headers_of(error)
        body = envelope(error, request.request_id)
        if request.scope["type"] == "websocket":
            await refuse_socket(request, status, body, headers)
        else:
            await request.refuse(body, status, headers)

    def _is_of_inside(self, request: Request) -> bool:
        """Report whether the bearer token is for the server inside the sandbox.

        It is, if a port token beside it opens the requested port. That token's signature is
        checked: guessing keys beside any other token is slowed down as everywhere.
        """
        token = port_token(request.headers, request.scope.get("query_string", b""))
        if token is None or "x-api-key" in request.headers or bearer_of(request.headers) is None:
            return False
        try:
            claims = self._tokens.opened("port", token)
        except NotFound:
            return False
        opened = f"/sandboxes/{claims['sandbox']}/ports/{claims['port']}/"
        path: str = request.scope["path"]
        return f"{path}/".startswith(opened)


def presented_key(request: Request) -> str | None:
    """Return the key that a request of our own protocol carries, or None."""
    key = request.headers.get("x-api-key")
    if key is not None:
        return key
    key = bearer_of(request.headers)
    if key is not None:
        return key
    if request.scope["type"] == "websocket":
        for each in request.headers.get("sec-websocket-protocol", "").split(","):
            if each.strip().startswith("key."):
                return each.strip()[4:]
    return None


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """Return the token of `Authorization: Bearer`, or None."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else None


async def refuse_socket(
    request: Request, status: int, body: dict[str, object], headers: Mapping[str, str]
) -> None:
    """Refuse a WebSocket with an HTTP answer, before it was accepted."""
    from cellwall.wire.answer import one_line

    data = one_line(body).encode()
    raw = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    raw += [(name.encode(), value.encode()) for name, value in headers.items()]
    await request.send({"type": "websocket.http.response.start", "status": status, "headers": raw})
    await request.send({"type": "websocket.http.response.body", "body": data})
