"""Routes of signed addresses, which read or write one file without a key, for a while."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cellwall.server.auth.ownership import owned
from cellwall.server.core.errors import HttpError
from cellwall.server.core.times import rfc3339
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, sandbox
from cellwall.server.schemas import responses as answers
from cellwall.server.schemas.paths import check_name
from cellwall.server.schemas.requests import SignBody
from cellwall.server.streaming.downloads import send_file

if TYPE_CHECKING:
    from cellwall.engine.parts.files import Files
    from cellwall.server.core.request import Call

_METHODS = {"read": "GET", "write": "PUT"}


async def sign(call: Call) -> None:
    """`POST /sandboxes/{id}/files/sign`."""
    body = await body_of(call, SignBody)
    record = sandbox(call)
    claims = {
        "sandbox": record.id,
        "path": check_name(body.path),
        "operation": body.operation,
        "max_bytes": body.max_bytes,
    }
    token, expires_at = call.state.tokens.sign(call.caller, "file", claims, body.expires_s)
    call.state.watch.redactor.learn_ours(token, "tokens")
    record.log("address signed", operation=body.operation)
    await call.answer(
        {
            "url": f"{base_url(call)}/signed/{token}",
            "method": _METHODS[body.operation],
            "expires_at": rfc3339(expires_at),
        }
    )


def base_url(call: Call) -> str:
    """Return the server's address as the client knows it."""
    scheme = {"ws": "http", "wss": "https"}.get(call.scope["scheme"], call.scope["scheme"])
    return f"{scheme}://{call.headers.get('host', '')}"


async def read(call: Call) -> None:
    """`GET /signed/{token}`."""
    await send_file(call, _files(call), call.claims["path"])


async def write(call: Call) -> None:
    """`PUT /signed/{token}`."""
    path, most = call.claims["path"], call.settings.upload_bytes
    if call.claims["max_bytes"] is not None:
        most = min(most, call.claims["max_bytes"])
    size = await _files(call).write_stream(path, call.pieces(most))
    await call.answer({"path": path, "size": size})


def _open(call: Call, operation: str) -> None:
    claims = call.state.tokens.opened("file", call.params["token"])
    if claims["operation"] != operation:
        raise HttpError(405, "method", f"token: it is not for {call.scope['method']}")
    call.claims = claims
    call.state.connections.lent(call, claims["owner"], claims["key"])


def _files(call: Call) -> Files:
    claims = call.claims
    record = owned(call.state.sandboxes.all, claims["owner"], "sandbox", claims["sandbox"])
    return record.sandbox.files


ENDPOINTS = (
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/files/sign",
        sign,
        "Sign an address that reads or writes one file without a key",
        {200: Answer("The address.", answers.Signed)},
        body=SignBody,
        tags=("files",),
    ),
    Endpoint(
        "GET",
        "/signed/{token}",
        read,
        "Read the file a signed address stands for",
        {200: Answer("Its bytes.", None, ("application/octet-stream",))},
        access="token",
        opens=partial(_open, operation="read"),
        headers=("Range",),
        tags=("files",),
    ),
    Endpoint(
        "PUT",
        "/signed/{token}",
        write,
        "Write the file a signed address stands for",
        {200: Answer("It is there.", answers.File)},
        body_media="application/octet-stream",
        access="token",
        opens=partial(_open, operation="write"),
        tags=("files",),
    ),
)
