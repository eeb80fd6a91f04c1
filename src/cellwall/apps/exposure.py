"""Exposure: whether a server, or a gateway, may listen where its settings say.

Called before anything is opened. The invariant: keys of callers never travel in plain text off this
machine unless the operator says that something in front speaks TLS.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings


def check_exposure(settings: ServerSettings, *, has_own_keys: bool) -> None:
    """Refuse to be reachable from other machines without the operator's keys, or in plain text."""
    if settings.is_local:
        return
    if not has_own_keys:
        raise UsageError(
            f"serve: {settings.host} can be reached from elsewhere, and there is no key for it",
            remedy="set CELLWALL_API_KEY, or give keys in the configuration",
        )
    if not settings.is_tls and not settings.allow_plain:
        raise UsageError(
            f"serve: keys would travel to {settings.host} in plain text",
            remedy="give --tls-cert and --tls-key, use --unix behind a proxy, or say --allow-plain",
        )


def check_tls(settings: ServerSettings) -> None:
    """Refuse an unusable certificate or key, before anything is opened."""
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(
            f"serve: TLS with certificate {settings.tls_cert} and key {settings.tls_key}: "
            f"{error.strerror or error}",
            remedy="give --tls-cert and --tls-key PEM files that belong together",
        ) from None
