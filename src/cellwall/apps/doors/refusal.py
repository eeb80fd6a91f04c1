"""A refusal in a foreign protocol's shape, made of an error alone.

Each door has a function that makes one; the door sends it, and so does a gateway, which has no door
and refuses as the door would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.apps.doors import exchange

if TYPE_CHECKING:
    from cellwall.server.core.request import Request

_NONE: Mapping[str, str] = {}
JSON = "application/json"


class Refusal(NamedTuple):
    """What a client gets instead of what it asked for."""

    status: int
    value: Mapping[str, Any] | None
    """The JSON object of the body; None: the body is `text`."""
    headers: Mapping[str, str] = _NONE
    text: str = ""
    media_type: str = JSON

    @property
    def body(self) -> bytes:
        """The body's bytes."""
        return self.text.encode() if self.value is None else exchange.encoded(self.value)


async def send(request: Request, refusal: Refusal) -> None:
    """Send a refusal, whether or not the body was read."""
    status, headers = refusal.status, refusal.headers
    if refusal.value is None:
        await request.answer_bytes(refusal.body, refusal.media_type, status, headers)
    else:
        await exchange.refuse(request, refusal.value, status, headers)
