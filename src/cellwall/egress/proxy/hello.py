"""The server name in a TLS client's first message, without opening the connection.

OpenSSL reads the message, by the standard library's `ssl`; it is fed in memory and answers nothing
to the client. The result is the name the client asks a certificate for (SNI, RFC 6066).
"""

from __future__ import annotations

import ssl
from typing import cast

MOST_BYTES = 65_536
"""Most bytes until the message must be whole."""
HANDSHAKE = 0x16
"""First byte of a TLS record that begins a handshake."""
ACCESS_DENIED = b"\x15\x03\x01\x00\x02\x02\x31"
"""Fatal alert 49, `access_denied` (RFC 8446, section 6.2): what a refused client is told."""


class NotTls(Exception):
    """The bytes are no message of a TLS client."""


class _Reading(ssl.SSLObject):
    """OpenSSL's reader of one message, and what it has read."""

    said: list[str | None]


def _on_name(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
    """Take the name, and end the handshake."""
    if isinstance(tls, _Reading):  # the context makes no other
        tls.said.append(name)
    return ssl.ALERT_DESCRIPTION_ACCESS_DENIED


_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
_CONTEXT.sslobject_class = _Reading
_CONTEXT.sni_callback = _on_name


class Hello:
    """The first message of one TLS client, as far as it has come."""

    def __init__(self) -> None:
        """Begin without a byte."""
        self._incoming = ssl.MemoryBIO()
        self._read = 0
        made = _CONTEXT.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)
        self._tls = cast("_Reading", made)
        self._tls.said = []

    def feed(self, data: bytes) -> bool:
        """Take more bytes; whether the message is whole now. Raises `NotTls`."""
        self._read += len(data)
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._read > MOST_BYTES:
                raise NotTls("its first message is too long") from None
            return False
        except (ssl.SSLError, ValueError):
            if not self._tls.said:
                raise NotTls("its first message cannot be read") from None
        return True

    @property
    def name(self) -> str | None:
        """The server name in lower case, once the message is whole; None if there is none."""
        said = self._tls.said[0] if self._tls.said else None
        return None if said is None else said.lower().removesuffix(".")
