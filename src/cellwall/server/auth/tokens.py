"""Signed tokens that stand for a key in one place for a while: a file's address, a port.

A token is no key (`keys`): it opens one object of one owner, and ends with its time, its sandbox or
the key that signed it. On a node it begins with the node's name and a dot, which are signed, too: a
router needs no key to know where it leads. The invariant: everything a token allows is in it and
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
from cellwall.model.ids import is_node

if TYPE_CHECKING:
    from cellwall.server.auth.keys import Principal

_SIGNATURE_BYTES = 32
_LONGEST = 16_384
_DOT = "."
"""Ends the name of a node; never part of a name or of what follows."""


class TokenRefused(NotFound):
    """The token opens nothing; audited like an unknown key."""


class Tokens:
    """Signs and opens the tokens of one server."""

    def __init__(self, key: bytes, is_accepted: Callable[[str], bool], node: str = "") -> None:
        """`is_accepted` reports for a key's id whether that key may still call.

        `node`: name of the node that the server is, if it is one.
        """
        self._key = key
        self._is_accepted = is_accepted
        self._begin = node + _DOT if node else ""

    def sign(
        self, caller: Principal, kind: str, claims: Mapping[str, Any], expires_s: float
    ) -> tuple[str, float]:
        """Return a token of `kind` and when it expires, in seconds since the epoch."""
        expires_at = time.time() + expires_s
        own = {"owner": caller.tenant, "key": caller.key_id, "kind": kind, "expires_at": expires_at}
        body = json.dumps({**claims, **own}).encode()
        return self._begin + _text(self._signature(body) + body), expires_at

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
        text = token.removeprefix(self._begin)
        try:
            if len(token) > _LONGEST or self._begin + text != token or _DOT in text:
                return {}
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
            is_ours = hmac.compare_digest(signature, self._signature(body))
            claims: dict[str, Any] = json.loads(body) if is_ours else {}
        except ValueError:
            return {}
        return claims

    def _signature(self, body: bytes) -> bytes:
        return hmac.new(self._key, self._begin.encode() + body, hashlib.sha256).digest()


def node_of_token(token: str) -> str:
    """Return the name of the node that signed a token; empty if it names none.

    It is what the token says: only that node can tell whether it is true.
    """
    name, dot, _ = token.partition(_DOT)
    return name if dot and is_node(name) else ""


def key_of_token(token: str) -> str:
    """Return the id of the key that a token says it was signed for; empty if it says none.

    As above: for a gateway, which cannot tell whether the signature is right.
    """
    text = token.partition(_DOT)[2]
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return str(json.loads(raw[_SIGNATURE_BYTES:])["key"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
