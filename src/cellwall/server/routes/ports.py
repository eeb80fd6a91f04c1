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
from cellwall.server.http.guards import bearer_of
from cellwall.server.port_proxy.headers import port_token, query_for_inside, to_inside
from cellwall.server.port_proxy.http import Exchange
from cellwall.server.port_proxy.websocket import InnerSocket
from cellwall.server.routes.signed import base_url
from cellwall.server.schemas import responses as answers
from cellwall.server.schemas.requests import PortSignBody

if TYPE_CHECKING:
    from cellwall.engine.parts.ports import Connection
    from cellwall.server.core.request import Call
    from cellwall.server.executions.sandboxes import SandboxRecord


async def sign(call: Call) -> None:
    """`POST /sandboxes/{id}/ports/sign`."""
    body = await body_of(call, PortSignBody)
    record = sandbox(call)
    claims = {"sandbox": record.id, "port": body.port}
    token, expires_at = call.state.tokens.sign(call.caller, "port", claims, body.expires_s)
    call.state.watch.redactor.learn_ours(token, "tokens")
    record.log("port signed", port=body.port)
    url = f"{base_url(call)}/sandboxes/{record.id}/ports/{body.port}/?cellwall_token={token}"
    await call.answer({"token": token, "url": url, "expires_at": rfc3339(expires_at)})


async def forward(call: Call) -> None:
    """`ANY /sandboxes/{id}/ports/{port}/…`."""
    port = _port(call.params["port"])
    record = _opened(call, port)
    prefix = f"/sandboxes/{record.id}/ports/{port}"
    target = _target(call, prefix)
    headers = to_inside(
        call.scope["headers"],
        port,
        prefix,
        has_its_own_authorization=_has_its_own_authorization(call),
        more=call.settings.port_headers,
    )
    connection = await _connected(record, port)
    try:
        if call.scope["type"] == "websocket":
            await InnerSocket(call, connection, target).run(headers)
        else:
            await Exchange(call, connection, prefix).run(target, headers)
    except PortError as error:
        raise _unreachable(error) from None
    finally:
        connection.abort()


def _opened(call: Call, port: int) -> SandboxRecord:
    """Return the sandbox if the caller's key or token opens this port of it."""
    if call.principal is not None:
        return sandbox(call)
    token = port_token(call.headers, call.scope.get("query_string", b""))
    if token is None:
        raise unauthorized()
    claims = call.state.tokens.opened("port", token)
    wanted = call.params["sandbox_id"]
    owner = claims["owner"] if (claims["sandbox"], claims["port"]) == (wanted, port) else ""
    record = owned(call.state.sandboxes.all, owner, "sandbox", wanted)
    call.state.connections.lent(call, claims["owner"], claims["key"])
    return record


def _has_its_own_authorization(call: Call) -> bool:
    """Report whether `Authorization` is for the inside: another header let the request in.

    SECURITY: credentials that a browser or a proxy adds by itself come without such a header, and
    are not for the inside: a password for this host, the visitor's identity. A key of this server
    never is, whichever header has it.
    """
    if "x-api-key" not in call.headers and "x-cellwall-token" not in call.headers:
        return False
    bearer = bearer_of(call.headers)
    if bearer is None:
        return True
    has_let_it_in = call.principal is not None and "x-api-key" not in call.headers
    return not has_let_it_in and call.state.keys.find(bearer) is None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65_535):
        raise UsageError(f"port: {text[:20]!r} is none", remedy="give 1 to 65535")
    return int(text)


def _target(call: Call, prefix: str) -> bytes:
    """Return path and query for the inside, as the client encoded them."""
    raw: bytes = call.scope.get("raw_path") or call.scope["path"].encode()
    path = raw.partition(b"?")[0][len(prefix) :] or b"/"
    if not raw.startswith(prefix.encode()) or not path.startswith(b"/"):
        raise UsageError("path: it is encoded where it must not be", remedy="send it plainly")
    query = query_for_inside(call.scope.get("query_string", b""))
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
        {200: Answer("The token.", answers.PortSigned)},
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
