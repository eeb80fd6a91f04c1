"""What of an HTTP message may pass between a client and a server inside, in either direction.

Pure. Not the passing (`routes.ports`). The invariants: no key or token of ours ever reaches the
inside; nothing the inside answers can set a cookie, open CORS, or make the API's own origin run
its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, urlencode

Headers = list[tuple[bytes, bytes]]
TOKEN_FIELD = "cellwall_token"  # noqa: S105 - the name of one
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect"}
)  # fmt: skip
_OURS = frozenset(
    {b"host", b"x-api-key", b"x-cellwall-token", b"content-length", b"x-forwarded-host",
     b"x-forwarded-proto", b"x-forwarded-prefix", b"x-forwarded-for", b"forwarded"}
)  # fmt: skip
_REFUSED = frozenset(
    {b"set-cookie", b"set-cookie2", b"clear-site-data", b"service-worker-allowed", b"alt-svc",
     b"strict-transport-security", b"public-key-pins", b"nel", b"report-to", b"x-request-id",
     b"www-authenticate", b"content-length"}
)  # fmt: skip
_SANDBOX = b"sandbox allow-scripts allow-forms allow-popups allow-modals"
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def to_inside(raw: Iterable[tuple[bytes, bytes]], port: int, *, has_our_bearer: bool) -> Headers:
    """Return the request headers a server inside gets, without framing."""
    headers: Headers = [(b"host", b"localhost:%d" % port)]
    named = _named_hops(raw)
    for name, value in raw:
        if name in _HOP or name in _OURS or name in named or name.startswith(b"sec-websocket"):
            continue
        if name == b"authorization" and has_our_bearer:
            continue
        headers.append((name, value.strip(b" \t")))  # the parser leaves what stands behind it
    return headers


def from_inside(raw: Iterable[tuple[bytes, bytes]], port: int, prefix: str) -> Headers:
    """Return the answer headers a client gets, without framing; `raw` in lower case."""
    headers: Headers = []
    named = _named_hops(raw)
    for name, value in raw:
        if name in _HOP or name in _REFUSED or name in named:
            continue
        if name.startswith(b"access-control-") or _CONTROL.search(value):
            continue
        headers.append((name, _relocated(value, port, prefix) if name == b"location" else value))
    headers.append((b"content-security-policy", _SANDBOX))
    headers.append((b"x-content-type-options", b"nosniff"))
    return headers


def _named_hops(raw: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the headers that `Connection` names: they are for this connection only."""
    return frozenset(
        token.strip().lower()
        for name, value in raw
        if name == b"connection"
        for token in value.split(b",")
    )


def _relocated(value: bytes, port: int, prefix: str) -> bytes:
    """Keep a redirect of the server inside below its own prefix."""
    for own in (b"http://localhost:%d" % port, b"http://127.0.0.1:%d" % port):
        if value.startswith(own):
            value = value[len(own) :] or b"/"
            break
    if value.startswith(b"/") and not value.startswith(b"//"):
        return prefix.encode() + value
    return value


def query_for_inside(raw: bytes) -> bytes:
    """Return a query without our token."""
    if TOKEN_FIELD.encode() not in raw:
        return raw
    pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True)
    return urlencode([pair for pair in pairs if pair[0] != TOKEN_FIELD]).encode()


def port_token(headers: Mapping[str, str], query: bytes) -> str | None:
    """Return the token for a port that a request carries, or None."""
    return headers.get("x-cellwall-token") or _token_of(query)


def _token_of(query: bytes) -> str | None:
    for name, value in parse_qsl(query.decode("latin-1")):
        if name == TOKEN_FIELD:
            return value
    return None
