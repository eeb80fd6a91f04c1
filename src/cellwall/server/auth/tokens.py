"""Signed tokens that stand for a key in one place for a while: a file's address, a port.

A token is no key (`keys`): it opens one object of one owner, and ends with its time, its sandbox,
the key that signed it, or the server's run. The invariant: everything a token allows is in it and
signed; nothing about it is kept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import NotFound

if TYPE_CHECKING:
    from cellwall.server.auth.keys import Principal

_SIGNATURE_BYTES = 32
_LONGEST = 16_384


class TokenRefused(NotFound):
    """The token opens nothing; audited like an unknown key."""


class Tokens:
    """Signs and opens tokens; one per server's run."""

    def __init__(self, key: bytes, is_accepted: Callable[[str], bool]) -> None:
        """`is_accepted` reports for a key's id whether that key may still call."""
        self._key = key
        self._is_accepted = is_accepted

    def sign(
        self, caller: Principal, kind: str, claims: Mapping[str, Any], expires_s: float
    ) -> tuple[str, float]:
        """Return a token of `kind` and when it expires, in seconds since the epoch."""
        expires_at = time.time() + expires_s
        own = {"owner": caller.tenant, "key": caller.key_id, "kind": kind, "expires_at": expires_at}
        body = json.dumps({**claims, **own}).encode()
        return _text(_signature(self._key, body) + body), expires_at

    def opened(self, kind: str, token: str) -> dict[str, Any]:
        """Return a token's claims.

        Raises `TokenRefused` if it is not this server's, of another kind, or too old, or if the key
        that signed it is no longer accepted.
        """
        claims = self._read(token)
        is_old = claims.get("kind") != kind or claims["expires_at"] <= time.time()
        if is_old or not self._is_accepted(claims["key"]):
            raise TokenRefused(
                "token: it is not known, or no longer", remedy="have a new one signed"
            )
        return claims

    def _read(self, token: str) -> dict[str, Any]:
        try:
            if len(token) > _LONGEST:
                return {}
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
            is_ours = hmac.compare_digest(signature, _signature(self._key, body))
            claims: dict[str, Any] = json.loads(body) if is_ours else {}
        except ValueError:
            return {}
        return claims


def _signature(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
