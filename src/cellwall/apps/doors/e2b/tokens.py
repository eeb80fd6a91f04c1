"""Tokens of sandboxes: what a client shows to the daemon, the interpreter and ports of one sandbox.

A token stands for the key that it was given to, at one sandbox, for one kind of traffic, as long as
that key is accepted. It is derived, never kept: a server that starts again with the same state
directory knows the tokens of before. The invariant: it opens the sandbox that is signed in it and
no other.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cellwall.server.auth.keys import KeyRing, Principal

Kind = Literal["daemon", "traffic"]
_FORM = re.compile(r"cws_([a-z0-9]{1,64})_([0-9a-f]{12})_([0-9a-f]{64})")


class SandboxTokens:
    """Derives and opens the tokens of one server."""

    def __init__(self, secret: bytes, keys: KeyRing) -> None:
        self._secret = secret
        self._keys = keys

    def make(self, kind: Kind, sandbox_id: str, caller: Principal) -> str:
        """Return the token of `kind` that `caller` has at a sandbox: always the same."""
        return self._of(kind, sandbox_id, caller.key_id, caller.tenant)

    def opened(self, kind: Kind, token: str) -> tuple[str, Principal] | None:
        """Return the sandbox that a token opens and who holds it; None if it opens nothing."""
        found = _FORM.fullmatch(token)
        holder = None if found is None else self._keys.holder(found[2])
        if found is None or holder is None:
            return None
        expected = self._of(kind, found[1], holder.key_id, holder.tenant)
        if not hmac.compare_digest(expected, token):
            return None
        return found[1], replace(holder, scope="run")

    def signer(
        self, signature: str, message: Signed, sandboxes: Iterable[tuple[str, str]]
    ) -> tuple[str, Principal] | None:
        """Return the sandbox and the holder whose token signed an address of a file, or None.

        `sandboxes`: id and tenant of those that it may be.
        """
        given = signature.encode("utf-8", "surrogateescape")
        found = None
        for sandbox_id, tenant in sandboxes:
            for holder in self._keys.holders(tenant):
                expected = message.signature(self.make("daemon", sandbox_id, holder)).encode()
                if hmac.compare_digest(expected, given):
                    found = sandbox_id, replace(holder, scope="run")
        return found

    def _of(self, kind: Kind, sandbox_id: str, key_id: str, tenant: str) -> str:
        message = "\0".join(("e2b", kind, sandbox_id, key_id, tenant)).encode()
        mac = hmac.digest(self._secret, message, "sha256").hex()
        return f"cws_{sandbox_id}_{key_id}_{mac}"


class Signed:
    """What the signature in an address of a file covers."""

    __slots__ = ("_before", "_expiration")

    def __init__(
        self, path: str, operation: Literal["read", "write"], user: str, expiration: str | None
    ) -> None:
        """Path, user and expiration (Unix seconds) exactly as in the query."""
        self._before = f"{path}:{operation}:{user}:"
        self._expiration = "" if expiration is None else f":{expiration}"

    def signature(self, token: str) -> str:
        """Return the signature that the holder of `token` makes."""
        text = f"{self._before}{token}{self._expiration}".encode("utf-8", "surrogateescape")
        return "v1_" + b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
