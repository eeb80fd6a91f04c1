"""Filter for the headers between a client and a server inside a sandbox, in either direction.

The functions are pure. The messages are passed on by `routes.ports`; the lists of names are in
`passed_headers`. The invariants: no key or token of this server, and nothing that a browser or a
proxy holds of the visitor, ever reaches the inside; no answer of the inside can set a cookie, open
CORS, steer a proxy in front, or run a page in the API's own origin.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import parse_qsl, unquote_plus

from cellwall.server.core.passed_headers import comes_out, goes_in, is_never_passed

Headers = list[tuple[bytes, bytes]]
TOKEN_FIELD = "cellwall_token"  # noqa: S105 - the name of one
_SANDBOX = b"sandbox allow-scripts allow-forms allow-popups allow-modals"
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def to_inside(
    raw: Iterable[tuple[bytes, bytes]],
    port: int,
    prefix: str,
    *,
    has_its_own_authorization: bool,
    more: Collection[str] = (),
    host: str | None = None,
) -> Headers:
    """Return the request headers a server inside gets, without framing; `raw` in lower case.

    `more` are further names that the operator lets pass; `host` is the owner's `Host`, by default
    localhost with the port.
    """
    headers: Headers = [(b"Host", (host or f"localhost:{port}").encode("ascii"))]
    named = _named_hops(raw)
    for name, value in raw:
        is_for_it = name == b"authorization" and has_its_own_authorization
        if not (is_for_it or _may_pass(name, named, is_listed=goes_in(name, more))):
            continue
        text = value.strip(b" \t")  # the parser leaves the white space after a value
        if name == b"referer":
            text = _referer_for_inside(text, port, prefix)
        if text or name != b"referer":
            headers.append((name, text))
    return headers


def from_inside(
    raw: Iterable[tuple[bytes, bytes]], port: int, prefix: str, more: Collection[str] = ()
) -> Headers:
    """Return the answer headers a client gets, without framing; arguments as for `to_inside`."""
    headers: Headers = []
    named = _named_hops(raw)
    for name, value in raw:
        is_listed = comes_out(name, more) and not _CONTROL.search(value)
        if _may_pass(name, named, is_listed=is_listed):
            is_place = name == b"location"
            headers.append((name, _relocated(value, port, prefix) if is_place else value))
    headers.append((b"content-security-policy", _SANDBOX))
    headers.append((b"x-content-type-options", b"nosniff"))
    return headers


def _may_pass(name: bytes, named: Collection[bytes], *, is_listed: bool) -> bool:
    return is_listed and name not in named and not is_never_passed(name)


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


def _referer_for_inside(value: bytes, port: int, prefix: str) -> bytes:
    """Return a referer as the inside knows it, without the token; empty for other pages."""
    address, _, query = value.partition(b"#")[0].partition(b"?")
    _, _, behind = address.partition(b"://")
    _, slash, path = behind.partition(b"/")
    inner = (slash + path).removeprefix(prefix.encode())
    if slash + path == inner or not inner.startswith(b"/"):
        return b""
    query = query_for_inside(query)
    return b"http://localhost:%d" % port + inner + (b"?" + query if query else b"")


def query_for_inside(raw: bytes) -> bytes:
    """Return a query without the token, however its name is encoded; other fields are unchanged."""
    if not raw:
        return raw
    return b"&".join(field for field in raw.split(b"&") if not _is_token(field))


def _is_token(field: bytes) -> bool:
    name = field.partition(b"=")[0].decode("latin-1")
    return unquote_plus(name) == TOKEN_FIELD


def port_token(headers: Mapping[str, str], query: bytes) -> str | None:
    """Return the token for a port that a request carries, or None."""
    return headers.get("x-cellwall-token") or _token_of(query)


def _token_of(query: bytes) -> str | None:
    for name, value in parse_qsl(query.decode("latin-1")):
        if name == TOKEN_FIELD:
            return value
    return None
