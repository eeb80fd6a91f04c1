"""Signed tokens that stand for a key in one place for a while: a file's address, a port.

Not keys (`keys`): a token opens one thing of one owner, and dies with its time, its sandbox or
the server's run. The invariant: everything a token allows is in it and signed; nothing about it
is kept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from cellwall.model.errors import NotFound

_SIGNATURE_BYTES = 32
_LONGEST = 16_384


class TokenRefused(NotFound):
    """It opens nothing; for the audit, as a key that is not known."""


def sign(key: bytes, kind: str, claims: Mapping[str, Any], expires_s: float) -> tuple[str, float]:
    """Return a token of `kind` and when it expires, in seconds since the epoch."""
    expires_at = time.time() + expires_s
    body = json.dumps({**claims, "kind": kind, "expires_at": expires_at}).encode()
    return _text(_signature(key, body) + body), expires_at


def opened(key: bytes, kind: str, token: str) -> dict[str, Any]:
    """Return a token's claims; `TokenRefused` if it is not ours, not of `kind`, or too old."""
    try:
        if len(token) > _LONGEST:
            raise ValueError("too long")
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        is_ours = hmac.compare_digest(signature, _signature(key, body))
        claims: dict[str, Any] = json.loads(body) if is_ours else {}
    except ValueError:
        claims = {}
    if claims.get("kind") != kind or claims["expires_at"] <= time.time():
        raise TokenRefused("token: it is not known, or no longer", remedy="have a new one signed")
    return claims


def _signature(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
