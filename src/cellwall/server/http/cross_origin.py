"""Pages of other origins that may call: what a browser asks before, and is told with each answer.

That is the protocol CORS of the Fetch standard. It protects a browser's user, never this server: a
page needs a key like any other client. The invariant: only an origin that the operator listed, in
exactly these words, is ever named; credentials that a browser sends by itself are never asked for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cellwall.server.core.request import Message, Request, Send

_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
_METHODS = "DELETE, GET, HEAD, PATCH, POST, PUT"
_FIELD_NAMES = re.compile(r"[A-Za-z0-9_-]+(, ?[A-Za-z0-9_-]+){0,99}")
_KNOWN_S = "600"
"""Seconds for which a browser may keep the answer to a preflight."""
_NEVER_SHOWN = frozenset({b"set-cookie", b"connection", b"transfer-encoding", b"date"})
_STARTS = frozenset({"http.response.start"})
_SAID = frozenset({b"access-control-allow-origin", b"access-control-expose-headers"})
_Headers = list[tuple[bytes, bytes]]


def listed(origins: Sequence[str]) -> frozenset[str]:
    """Return the operator's origins. Raises `UsageError` for what no browser sends as one."""
    for each in origins:
        if not _ORIGIN.fullmatch(each):
            raise UsageError(
                f"allowed_origins: {each!r} is no origin of a page",
                remedy="write each as a browser does: https://app.example, in lower case, with "
                "the port if it is an unusual one, without a path and without *",
            )
    return frozenset(origins)


def is_preflight(scope: Message, headers: Mapping[str, str]) -> bool:
    """Report whether a browser asks if a page may send a request."""
    return (
        scope["type"] == "http"
        and scope["method"] == "OPTIONS"
        and "origin" in headers
        and "access-control-request-method" in headers
    )


async def answer_preflight(request: Request) -> None:
    """Permit a listed page's request, whatever it is: it will be checked like any other."""
    fields = permission(request.headers.get("access-control-request-headers", ""))
    await request.answer_bytes(b"", "text/plain", headers=fields)


def permission(asked: str) -> dict[str, str]:
    """Return the headers of an answer to a preflight; `asked`: the header fields it names."""
    fields = {"access-control-allow-methods": _METHODS, "access-control-max-age": _KNOWN_S}
    if _FIELD_NAMES.fullmatch(asked):
        fields["access-control-allow-headers"] = asked
    return fields


def telling(origin: str, send: Send) -> Send:
    """Return what sends answers with the permission for a page of `origin` to read them."""

    async def sending(message: Message) -> None:
        if message["type"] in _STARTS:
            message = {**message, "headers": told(origin.encode("latin-1"), message["headers"])}
        await send(message)

    return sending


def told(origin: bytes, headers: Iterable[tuple[bytes, bytes]]) -> _Headers:
    """Return an answer's headers, with the permission for a page of `origin` to read them."""
    kept = [each for each in headers if each[0] not in _SAID]
    names = sorted({name.lower() for name, _ in kept} - _NEVER_SHOWN)
    return [
        *kept,
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b", ".join(names)),
        (b"vary", b"Origin"),
    ]
