"""Encryption of secrets at rest: AES-256-GCM with a key of the operator's.

The key is in a file that the server's user alone can read; what is sealed is bound to its tenant,
its name and its hosts, so that a row that was changed in the database does not open. The invariant:
without the right key there is no value and no guess, but an error that says what to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cellwall.model.errors import UsageError

KEY_FILE = "secrets.key"
"""Name of the file in the state directory, if the operator names no other."""
_KEY_BYTES = 32
_NONCE_BYTES = 12
_ONLY_OURS = 0o600


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
        try:
            return cls(_read(path))
        except FileNotFoundError:
            if not may_make:
                raise _wrong(
                    path, "there is no such file", "make it, or correct the path"
                ) from None
        _make(path)
        return cls(_read(path))

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


def _make(path: Path) -> None:
    """Make the file whole or not at all; one that another process made meanwhile stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(made, "xb", opener=lambda name, _: os.open(name, flags, _ONLY_OURS)) as file:
            file.write(secrets.token_hex(_KEY_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
    finally:
        made.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            raise _wrong(path, "others may read it", f"run: chmod 600 {path}")
        text = file.read(4 * _KEY_BYTES)
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise _wrong(path, "it holds no key", "put 64 hexadecimal digits into it")
    return key


def _bound(tenant: str, name: str, facts: Mapping[str, Any]) -> bytes:
    return json.dumps([tenant, name, dict(sorted(facts.items()))]).encode()


def _wrong(path: Path, what: str, remedy: str) -> UsageError:
    return UsageError(f"secrets: the key in {path}: {what}", remedy=remedy)
