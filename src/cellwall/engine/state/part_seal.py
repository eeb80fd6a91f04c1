"""Encryption of stored snapshots: AES-256-GCM in chunks, with a key of the operator's.

Each file gets a key of its own, derived from the operator's and a salt at the file's beginning; a
chunk is bound to the file's purpose, its place and whether it is the last one. So no chunk can be
left out, moved, or taken from another snapshot. The invariant: a byte is given on only after its
chunk was found to be right.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CHUNK_BYTES = 1 << 20
_SALT_BYTES = 32
_TAG_BYTES = 16
_NUMBER_BYTES = 11
_NONCE_BYTES = 12


class PartSeal:
    """One key."""

    def __init__(self, key: bytes) -> None:
        """`key` has 32 bytes."""
        self._key = key

    def sealed(self, value: bytes, bound: bytes) -> bytes:
        """Return a short text encrypted, and bound to another one."""
        salt = secrets.token_bytes(_SALT_BYTES)
        return salt + self._cipher(salt, b"header").encrypt(bytes(_NONCE_BYTES), value, bound)

    def opened(self, sealed: bytes, bound: bytes) -> bytes | None:
        """Return the text; None for another key, or if one of the two was changed."""
        salt, encrypted = sealed[:_SALT_BYTES], sealed[_SALT_BYTES:]
        try:
            return self._cipher(salt, b"header").decrypt(bytes(_NONCE_BYTES), encrypted, bound)
        except (InvalidTag, ValueError):
            return None

    def encrypted(self, chunks: Iterator[bytes], purpose: str) -> Iterator[bytes]:
        """Encrypt a file that comes in chunks of `CHUNK_BYTES`; only the last may be shorter."""
        salt = secrets.token_bytes(_SALT_BYTES)
        cipher = self._cipher(salt, purpose.encode())
        yield salt
        for number, (chunk, is_last) in enumerate(_with_last(chunks)):
            yield cipher.encrypt(_nonce(number, is_last=is_last), chunk, None)

    def decrypted(self, chunks: Iterator[bytes], purpose: str) -> Iterator[bytes]:
        """Decrypt a file that comes in chunks of any size. Raises ValueError for a wrong one."""
        whole = _in_sizes(chunks, _SALT_BYTES, CHUNK_BYTES + _TAG_BYTES)
        cipher = self._cipher(next(whole, b""), purpose.encode())
        for number, (chunk, is_last) in enumerate(_with_last(whole)):
            try:
                yield cipher.decrypt(_nonce(number, is_last=is_last), chunk, None)
            except InvalidTag:
                raise ValueError("it does not open with this key") from None

    def _cipher(self, salt: bytes, purpose: bytes) -> AESGCM:
        return AESGCM(hmac.new(self._key, b"snapshot\0" + salt + purpose, hashlib.sha256).digest())


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big") + bytes([is_last])


def _with_last(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each chunk with whether it is the last; an empty file has one that is empty."""
    latest = next(chunks, b"")
    for chunk in chunks:
        yield latest, False
        latest = chunk
    yield latest, True


def _in_sizes(chunks: Iterator[bytes], first: int, size: int) -> Iterator[bytes]:
    """Yield the same bytes: `first` of them, then `size` at a time."""
    held, wanted = bytearray(), first
    for chunk in chunks:
        held += chunk
        while len(held) >= wanted:
            yield bytes(held[:wanted])
            del held[:wanted]
            wanted = size
    if held:
        yield bytes(held)
