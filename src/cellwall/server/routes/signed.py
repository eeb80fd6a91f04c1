"""Routes of signed addresses, which read or write one file without a key, for a while."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cellwall.server.auth.ownership import owned
from cellwall.server.core.errors import HttpError
from cellwall.server.core.times import rfc3339
from cellwall.server.http.endpoint import Answer, Endpoint, body_of, sandbox
from cellwall.server.schemas import responses
from cellwall.server.schemas.paths import check_name
from cellwall.server.schemas.requests import SignBody
from cellwall.server.streaming.downloads import send_file

if TYPE_CHECKING:
    from cellwall.engine.parts.files import Files
    from cellwall.server.core.request import Request

_METHODS = {"read": "GET", "write": "PUT"}


async def sign(request: Request) -> None:
    """`POST /sandboxes/{id}/files/sign`."""
    body = await body_of(request, SignBody)
    record = sandbox(request)
    claims = {
        "sandbox": record.id,
        "path": check_name(body.path),
        "operation": body.operation,
        "max_bytes": body.max_bytes,
    }
    token, expires_at = request.state.tokens.sign(request.caller, "file", claims, body.expires_s)
    request.state.observer.redactor.learn_ours(token, "tokens")
    record.log("address signed", operation=body.operation)
    await request.answer(
        {
            "url": f"{base_url(request)}/signed/{token}",
            "method": _METHODS[body.operation],
            "expires_at": rfc3339(expires_at),
        }
    )


def base_url(request: Request) -> str:
    """Return the server's address as the client knows it."""
    scheme = {"ws": "http", "wss": "https"}.get(request.scope["scheme"], request.scope["scheme"])
    return f"{scheme}://{request.headers.get('host', '')}"


async def read(request: Request) -> None:
    """`GET /signed/{token}`."""
    await send_file(request, _files(request), request.claims["path"])


async def write(request: Request) -> None:
    """`PUT /signed/{token}`."""
    path, most = request.claims["path"], request.settings.upload_bytes
    if request.claims["max_bytes"] is not None:
        most = min(most, request.claims["max_bytes"])
    size = await _files(request).write_stream(path, request.pieces(most))
    await request.answer({"path": path, "size": size})


def _open(request: Request, operation: str) -> None:
    token = request.params["token"]
    claims = request.state.tokens.opened("file", token)
    request.state.observer.redactor.learn_ours(token, "tokens")  # an earlier server's, perhaps
    if claims["operation"] != operation:
        raise HttpError(405, "method", f"token: it is not for {request.scope['method']}")
    request.claims = claims
    request.state.connections.lent(request, claims["owner"], claims["key"])


def _files(request: Request) -> Files:
    claims = request.claims
    record = owned(request.state.sandboxes.all, claims["owner"], "sandbox", claims["sandbox"])
    return record.sandbox.files


ENDPOINTS = (
    Endpoint(
        "POST",
        "/sandboxes/{sandbox_id}/files/sign",
        sign,
        "Sign an address that reads or writes one file without a key",
        {200: Answer("The address.", responses.Signed)},
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
        {200: Answer("It is there.", responses.File)},
        body_media="application/octet-stream",
        access="token",
        opens=partial(_open, operation="write"),
        tags=("files",),
    ),
)
