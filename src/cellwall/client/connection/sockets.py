"""WebSockets of the SDK: opening one at one address.

Imported by `transport` only where one is needed: `websockets` takes longer to import than the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from websockets.asyncio.client import connect

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from cellwall.client.connection.address import Address

_IN_THE_MIDDLE = (
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    TimeoutError,
)
"""Errors that a handshake under way may have, too."""


class _Connect(connect):
    """A connection that follows no redirect: the key is for the address that the caller gave."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Have a redirect as the refusal that it is."""
        return exc


async def opened(
    address: Address, path: str, params: Mapping[str, str], timeout_s: float
) -> ClientConnection:
    """Open a WebSocket. Raises OSError, InvalidHandshake, also for a redirect."""
    options: dict[str, Any] = {
        "additional_headers": {"X-API-Key": address.key},
        "compression": None,
        "max_size": None,
        # The server pings; an owner may leave data unread for long.
        "ping_interval": None,
        "open_timeout": timeout_s,
    }
    url = f"{address.socket_url}{path}?{urlencode(params)}"
    if address.unix is not None:
        return await _Connect(url, unix=True, path=address.unix, **options)
    return await _Connect(url, **options, proxy=None)


def made_no_connection(error: Exception) -> bool:
    """Report whether an error of `opened` is certainly one of connecting: nothing was sent."""
    return isinstance(error, OSError) and not isinstance(error, _IN_THE_MIDDLE)
