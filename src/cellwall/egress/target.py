"""A caller's URL, taken apart: syntax checks before any name is resolved.

The functions are pure. Whether the address may be connected to is decided by `addresses`. The
invariant: nothing in a target can break out of the request line or the `Host` header.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from cellwall.model.errors import UsageError

_MOST_CHARACTERS = 2048
_PLAIN = re.compile(r"[\x21-\x7e]+")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\.?")
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of a request."""

    is_tls: bool
    host: str
    """A name or an address, without brackets."""
    port: int
    path: str
    """Path with the query."""

    @property
    def authority(self) -> str:
        """Value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host
            if self.port == _PORTS["https" if self.is_tls else "http"]
            else f"{host}:{self.port}"
        )


def target_of(url: str) -> Target:
    """Return the parts of a URL; `UsageError` for anything but a plain `http` or `https` URL."""
    if len(url) > _MOST_CHARACTERS or not _PLAIN.fullmatch(url) or "\\" in url:
        raise _wrong(f"it is not up to {_MOST_CHARACTERS} printable ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _wrong(str(error)) from None
    if parts.scheme not in _PORTS:
        raise _wrong(f"its scheme is {parts.scheme!r}")
    if "@" in parts.netloc:
        raise _wrong("it has a user or a password in it")
    host = parts.hostname or ""
    if ":" not in host and not _NAME.fullmatch(host):
        raise _wrong("it has no host, or one that is no name")
    if port == 0:
        raise _wrong("its port is 0")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme == "https", host, port or _PORTS[parts.scheme], path)


def _wrong(why: str) -> UsageError:
    return UsageError(
        f"webhook URL: {why}", remedy="give one such as https://hooks.example.com/cellwall"
    )
