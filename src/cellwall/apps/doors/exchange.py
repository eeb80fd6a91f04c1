"""JSON of foreign protocols: bodies that are read within bounds, answers of any JSON value.

The server's own bodies are read by `server.http.endpoint`, whose schemas refuse unknown fields;
foreign clients send fields of versions that a door does not know. The invariant: text that no UTF-8
has (lone surrogates) is escaped and never an error.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from cellwall.server.http.face import refuse_socket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.server.core.request import Request

_encoded = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encoded(value: object) -> bytes:
    """Return a JSON value as bytes."""
    return _encoded(value).encode()


async def answer(
    request: Request, value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Send one JSON value."""
    await request.answer_bytes(encoded(value), "application/json", status, headers)


async def refuse(
    request: Request, value: Mapping[str, Any], status: int, headers: Mapping[str, str]
) -> None:
    """Send a refusal, whether or not the body was read, and also in the place of a WebSocket."""
    if request.scope["type"] == "websocket":
        await refuse_socket(request, status, dict(value), headers)
    elif request.is_body_read:
        await answer(request, value, status, headers)
    else:
        await request.refuse(value, status, headers)


async def body_of(request: Request) -> bytes:
    """Read the body, which may have as many bytes as one of the server's own."""
    return await request.body(request.settings.body_bytes)


def decoded(data: bytes) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON value; `ValueError` if it is none, or nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def from_base64(text: str) -> bytes:
    """Return the bytes of base64; `ValueError` for any character that does not belong there."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def as_base64(data: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(data).decode("ascii")
