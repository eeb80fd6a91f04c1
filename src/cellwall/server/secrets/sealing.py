"""Encryption of secrets at rest: AES-256-GCM with a key of the operator's.

The key is in a file that the server's user alone can read; what is sealed is bound to its tenant,
its name and its hosts, so that a row that was changed in the database does not open. The invariant:
without the right key there is no value and no guess, but an error that says what to do.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cellwall.model.errors import UsageError
from cellwall.store import key_file

KEY_FILE = "secrets.key"
"""Name of the file in the state directory, if the operator names no other."""
_NONCE_BYTES = 12


class Seal:
    """One key."""

    def __init__(self, key: bytes) -> None:
        """`key` has 32 bytes."""
        self._cipher = AESGCM(key)

    @classmethod
    def of_file(cls, path: Path, *, may_make: bool) -> Seal:
        """Read the key of a file, 64 hexadecimal digits; make the file if there is none.

        Raises `UsageError` for a file that others may read, or that holds no key.
        """
        return cls(key_file.read(path, "secrets", may_make=may_make))

    def sealed(self, value: str, tenant: str, name: str, facts: Mapping[str, Any]) -> bytes:
        """Return a value encrypted for its tenant, name and facts."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        bound = _bound(tenant, name, facts)
        return nonce + self._cipher.encrypt(nonce, value.encode(), bound)

    def opened(self, sealed: bytes, tenant: str, name: str, facts: Mapping[str, Any]) -> str:
        """Return the value. Raises `UsageError` for another key, or a row that was changed."""
        nonce, encrypted = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, encrypted, _bound(tenant, name, facts)).decode()
        except (InvalidTag, ValueError):
            raise UsageError(
                f"secrets: {name} cannot be opened: it was written with another key, or changed in "
                "the store",
                remedy="give the server the key it was written with, or set the secret again",
            ) from None


def _bound(tenant: str, name: str, facts: Mapping[str, Any]) -> bytes:
    return json.dumps([tenant, name, dict(sorted(facts.items()))]).encode()
