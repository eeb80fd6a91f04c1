"""Addresses to which a client uploads one archive; the secret is in the address.

Clients send no key there. The invariant: an address opens the one archive of the one tenant that
it was made for, until it expires or its key ends, and nothing else.
"""

from __future__ import annotations

import hmac
import re
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cellwall.server.auth.keys import KeyRing, Principal

PREFIX = "/uploads/"
LIFE_S = 3600
_FORM = re.compile(r"([0-9]{1,12})_([0-9a-f]{64})_([0-9a-f]{12})_([0-9a-f]{64})")


class Opened(NamedTuple):
    """What an address opens."""

    digest: str
    caller: Principal
    is_expired: bool


class UploadLinks:
    """Makes and opens the addresses of one server."""

    def __init__(self, secret: bytes, keys: KeyRing, node: str = "") -> None:
        """`node`: name of the node, by which a gateway finds it; empty: there are no others."""
        self._node = f"{node}_" if node else ""
        self._secret = secret
        self._keys = keys

    def make(self, digest: str, caller: Principal) -> str:
        """Return the path below the door's address."""
        expiry = str(int(time.time()) + LIFE_S)
        mac = self._mac(expiry, digest, caller)
        return f"{PREFIX}{self._node}{expiry}_{digest}_{caller.key_id}_{mac}"

    def opened(self, path: str) -> Opened | None:
        """Return what a path opens; None: nothing."""
        said = _FORM.fullmatch(path.removeprefix(PREFIX).removeprefix(self._node))
        holder = None if said is None else self._keys.holder(said[3])
        if said is None or holder is None:
            return None
        if not hmac.compare_digest(self._mac(said[1], said[2], holder), said[4]):
            return None
        return Opened(said[2], holder, int(said[1]) < time.time())

    def _mac(self, expiry: str, digest: str, caller: Principal) -> str:
        words = ("e2b", "upload", expiry, digest, caller.key_id, caller.tenant)
        return hmac.digest(self._secret, "\0".join(words).encode(), "sha256").hex()
