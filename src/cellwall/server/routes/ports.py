"""Routes of HTTP and WebSockets to a server inside a sandbox, whose network stays off.

A key of the owner, or a token for this one port, opens it (API-7). The invariant: the inside never
sees either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.errors import PortError, UsageError
from cellwall.server.auth.ownership import owned
from cellwall.server.core.errors import HttpError
from cellwall.server.core.request import unauthorized
from cellwall.server.core.times import rfc3339
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, sandbox
from cellwall.server.http.face import bearer_of
from cellwall.server.port_proxy.headers import port_token, query_for_inside, to_inside
from cellwall.server.port_proxy.http import Exchange
from cellwall.server.port_proxy.websocket import InnerSocket
from cellwall.server.routes.signed import base_url
from cellwall.server.schemas import responses
from cellwall.server.schemas.requests import PortSignBody

if TYPE_CHECKING:
    from cellwall.engine.parts.ports import Connection
    from cellwall.server.core.request import Request
    from cellwall.server.executions.sandboxes import SandboxRecord


_IN_PLACE_OF_BEARER = frozenset({"x-api-key", "e2b-traffic-access-token"})
_OPENERS = _IN_PLACE_OF_BEARER | {"x-cellwall-token"}
"""Headers beside `Authorization` that let a request in."""


async def sign(request: Request) -> None:
    """`POST /sandboxes/{id}/ports/sign`."""
    body = await body_of(request, PortSignBody)
    record = sandbox(request)
    claims = {"sandbox": record.id, "port": body.port}
    token, expires_at = request.state.tokens.sign(request.caller, "port", claims, body.expires_s)
    request.state.observer.redactor.learn_ours(token, "tokens")
    record.log("port signed", port=body.port)
    url = f"{base_url(request)}/sandboxes/{record.id}/ports/{body.port}/?cellwall_token={token}"
    await request.answer({"token": token, "url": url, "expires_at": rfc3339(expires_at)})


async def forward(request: Request) -> None:
    """`ANY /sandboxes/{id}/ports/{port}/…`."""
    port = _port(request.params["port"])
    record = _opened(request, port)
    await passed_on(request, record, port, f"/sandboxes/{record.id}/ports/{port}")


async def passed_on(
    request: Request, record: SandboxRecord, port: int, prefix: str, host: str | None = None
) -> None:
    """Pass a request on to a port of a sandbox that its caller may reach, and the answer back.

    `prefix` is the part of the path that is not for the inside; `host` is the `Host` there, by
    default localhost with the port. Raises a 502 if none listens.
    """
    target = _target(request, prefix)
    headers = to_inside(
        request.scope["headers"],
        port,
        prefix,
        has_its_own_authorization=_has_its_own_authorization(request),
        more=request.settings.port_headers,
        host=host,
    )
    connection = await _connected(record, port)
    try:
        if request.scope["type"] == "websocket":
            await InnerSocket(request, connection, target).run(headers)
        else:
            await Exchange(request, connection, prefix).run(target, headers)
    except PortError as error:
        raise _unreachable(error) from None
    finally:
        connection.abort()


def _opened(request: Request, port: int) -> SandboxRecord:
    """Return the sandbox if the caller's key or token opens this port of it."""
    if request.principal is not None:
        return sandbox(request)
    token = port_token(request.headers, request.scope.get("query_string", b""))
    if token is None:
        raise unauthorized()
    claims = request.state.tokens.opened("port", token)
    request.state.observer.redactor.learn_ours(token, "tokens")  # an earlier server's, perhaps
    wanted = request.params["sandbox_id"]
    owner = claims["owner"] if (claims["sandbox"], claims["port"]) == (wanted, port) else ""
    record = owned(request.state.sandboxes.all, owner, "sandbox", wanted)
    request.state.connections.lent(request, claims["owner"], claims["key"])
    return record


def _has_its_own_authorization(request: Request) -> bool:
    """Report whether `Authorization` is for the inside: another header let the request in.

    SECURITY: credentials that a browser or a proxy adds by itself come without such a header, and
    are not for the inside: a password for this host, the visitor's identity. A key of this server
    never is, whichever header has it.
    """
    if not _OPENERS & request.headers.keys():
        return False
    bearer = bearer_of(request.headers)
    if bearer is None:
        return True
    is_beside = bool(_IN_PLACE_OF_BEARER & request.headers.keys())
    has_let_it_in = request.principal is not None and not is_beside
    return not has_let_it_in and request.state.keys.find(bearer) is None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65_535):
        raise UsageError(f"port: {text[:20]!r} is none", remedy="give 1 to 65535")
    return int(text)


def _target(request: Request, prefix: str) -> bytes:
    """Return path and query for the inside, as the client encoded them."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.partition(b"?")[0][len(prefix) :] or b"/"
    if not raw.startswith(prefix.encode()) or not path.startswith(b"/"):
        raise UsageError("path: it is encoded where it must not be", remedy="send it plainly")
    query = query_for_inside(request.scope.get("query_string", b""))
    return path + (b"?" + query if query else b"")


async def _connected(record: SandboxRecord, port: int) -> Connection:
    try:
        return await record.sandbox.ports.connect(port)
    except PortError as error:
        raise _unreachable(error) from None


def _unreachable(error: PortError) -> HttpError:
    return HttpError(502, "port_unreachable", error.message, remedy=error.remedy)


_PATH = "/sandboxes/{sandbox_id}/ports/{port}"
_PASSED = {200: Answer("Whatever the server inside answers.")}
ENDPOINTS = (
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/ports/sign",
        sign,
        "Sign a token that opens one port without a key",
        {200: Answer("The token.", responses.PortSigned)},
        body=PortSignBody,
        tags=("ports",),
    ),
    Endpoint("*", _PATH, forward, "A server inside", _PASSED, access="token", tags=("ports",)),
    Endpoint(
        "*",
        _PATH + "/{path:path}",
        forward,
        "A server inside",
        _PASSED,
        access="token",
        tags=("ports",),
    ),
)
