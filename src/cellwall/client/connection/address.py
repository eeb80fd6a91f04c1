"""Server address and key, from arguments and the environment.

The only module of the SDK that reads the environment. The invariant: a key is never part of a URL,
of a message or of a `repr`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from cellwall.model.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8080"
_SOCKET_SCHEME = {"http": "ws", "https": "wss"}
_BETWEEN = re.compile(r"\s*,\s*(?=https?://|unix:)")
"""What is between two addresses; the path of a unix socket may have a comma."""


@dataclass(frozen=True, slots=True)
class Address:
    """One server and the key for it, or several gateways of one cluster."""

    url: str
    """`http://…` or `https://…`, without a slash at its end."""
    unix: str | None = None
    """Path of the unix socket, if the server listens on one."""
    key: str = field(default="", repr=False)
    others: tuple[Address, ...] = ()
    """Where the same cluster is asked when this one cannot be; best first."""

    @property
    def socket_url(self) -> str:
        """Address for WebSockets."""
        scheme, _, rest = self.url.partition("://")
        return f"{_SOCKET_SCHEME[scheme]}://{rest}"

    @property
    def shown(self) -> str:
        """Address for messages, with the others after commas, as `address_of` takes it."""
        own = self.url if self.unix is None else f"unix:{self.unix}"
        return ",".join((own, *(each.shown for each in self.others)))


def address_of(
    url: str | Sequence[str] | None, api_key: str | None, environ: Mapping[str, str]
) -> Address:
    """Return the address of the server; `UsageError` for an invalid address or key.

    `url`: several gateways of one cluster as a sequence, or as one text with commas.
    """
    if url is not None and not isinstance(url, str) and not url:
        raise UsageError(
            "connect: the sequence of addresses is empty",
            remedy="give one at least, or None for that of CELLWALL_URL",
        )
    wanted = url or environ.get("CELLWALL_URL") or DEFAULT_URL
    key = api_key or environ.get("CELLWALL_API_KEY", "")
    if not key:
        raise UsageError(
            "connect: there is no key",
            remedy="set CELLWALL_API_KEY to the key `cellwall serve` printed at its first start",
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("connect: the key has characters no key has", remedy="copy it again")
    words = _BETWEEN.split(wanted) if isinstance(wanted, str) else list(wanted)
    first, *others = (_one(each, key) for each in dict.fromkeys(words))
    _check_together([first, *others])
    return replace(first, others=tuple(others)) if others else first


def _one(url: str, key: str) -> Address:
    if url.startswith("unix:"):
        return Address("http://localhost", url.removeprefix("unix:"), key)
    _check(url)
    return Address(url.rstrip("/"), None, key)


def _check_together(addresses: Sequence[Address]) -> None:
    """Refuse a way in clear beside ways with TLS: a fault of those would bring the key onto it."""
    clear = [each for each in addresses if each.unix is None and _is_in_clear(each.url)]
    if clear and any(each.url.startswith("https:") for each in addresses):
        raise UsageError(
            f"connect: {clear[0].url} has no TLS, and others of the addresses have",
            remedy="give https:// for all of them, or http:// for this machine's own alone",
        )


def _is_in_clear(url: str) -> bool:
    """Report whether requests go to another machine without TLS."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "http" and host != "localhost" and not _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in _SOCKET_SCHEME and bool(parts.hostname)
        is_right = is_right and not (parts.query or parts.fragment or parts.username)
        is_right = is_right and "," not in parts.netloc
        _ = parts.port  # a wrong one raises here
    except ValueError:
        is_right = False
    if not is_right:
        raise UsageError(
            f"connect: {url.rpartition('@')[2]!r} is not the address of a server",
            remedy="give http://host:port, https://host or unix:/path; several with commas",
        )
