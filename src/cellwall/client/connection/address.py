"""Server address and key, from arguments and the environment.

The only module of the SDK that reads the environment. The invariant: a key is never part of a URL,
of a message or of a `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cellwall.model.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8080"
_SOCKET_SCHEME = {"http": "ws", "https": "wss"}


@dataclass(frozen=True, slots=True)
class Address:
    """One server and the key for it."""

    url: str
    """`http://…` or `https://…`, without a slash at its end."""
    unix: str | None = None
    """Path of the unix socket, if the server listens on one."""
    key: str = field(default="", repr=False)

    @property
    def socket_url(self) -> str:
        """Address for WebSockets."""
        scheme, _, rest = self.url.partition("://")
        return f"{_SOCKET_SCHEME[scheme]}://{rest}"

    @property
    def shown(self) -> str:
        """Address for messages."""
        return self.url if self.unix is None else f"unix:{self.unix}"


def address_of(url: str | None, api_key: str | None, environ: Mapping[str, str]) -> Address:
    """Return the address of the server; `UsageError` for an invalid address or key."""
    wanted = url or environ.get("CELLWALL_URL") or DEFAULT_URL
    key = api_key or environ.get("CELLWALL_API_KEY", "")
    if not key:
        raise UsageError(
            "connect: there is no key",
            remedy="set CELLWALL_API_KEY to the key `cellwall serve` printed at its first start",
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("connect: the key has characters no key has", remedy="copy it again")
    if wanted.startswith("unix:"):
        return Address("http://localhost", wanted.removeprefix("unix:"), key)
    _check(wanted)
    return Address(wanted.rstrip("/"), None, key)


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in _SOCKET_SCHEME and bool(parts.hostname)
        is_right = is_right and not (parts.query or parts.fragment or parts.username)
        _ = parts.port  # a wrong one raises here
    except ValueError:
        is_right = False
    if not is_right:
        raise UsageError(
            f"connect: {url.rpartition('@')[2]!r} is not the address of a server",
            remedy="give http://host:port, https://host or unix:/path",
        )
