"""API keys: the caller's identity, from the key and from nothing else.

The objects an owner may use are checked by `ownership`. Keys are kept as SHA-256 of at least 256
random bits, which needs no salt and no slow hash. The invariant: no key in clear is stored, logged
or shown after it was made; comparing takes the same time whatever is presented.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cellwall.model.errors import UsageError

Scope = Literal["run", "manage", "admin"]
KEY_ID_LENGTH = 12
"""Digits of a key's digest that are its short name."""
SCOPES: tuple[Scope, ...] = ("run", "manage", "admin")
"""Scopes in rising order; each contains the ones before it."""
_E2B = "e2b_"
"""Beginning of every key in the form that E2B's clients check; hexadecimal digits follow."""
_SHORTEST = 32
"""Least number of characters of a key from an operator; the server's own keys have 46."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    tenant: str
    key_id: str
    """Names the key in logs; says nothing about it."""
    scope: Scope

    def may(self, scope: Scope) -> bool:
        """Report whether the key's scope contains `scope`."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key as it is kept."""

    digest: str
    """SHA-256 in hexadecimal."""
    tenant: str = "default"
    """Whose sandboxes and executions its holder sees and reaches: these, and no others."""
    scope: Scope = "run"
    """`run` uses sandboxes, `manage` also looks after the tenant's, `admin` after the server."""
    expires_at: float | None = None
    """Seconds since the epoch; None: when it is removed."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on an invalid digest, scope or tenant."""
        if len(self.digest) != 64 or set(self.digest) - set("0123456789abcdef"):
            raise UsageError(
                "keys: sha256 is not a SHA-256 in hexadecimal",
                remedy="make it with: printf %s KEY | sha256sum",
            )
        if self.scope not in SCOPES:
            raise UsageError(f"keys: unknown scope {self.scope!r}", remedy=f"one of {SCOPES}")
        if not self.tenant or len(self.tenant) > 64 or not self.tenant.isprintable():
            raise UsageError("keys: a tenant needs 1 to 64 printable characters", remedy="name it")

    @property
    def key_id(self) -> str:
        """A short name for logs, from the digest."""
        return self.digest[:KEY_ID_LENGTH]

    @property
    def principal(self) -> Principal:
        """The caller that the key stands for."""
        return Principal(self.tenant, self.key_id, self.scope)

    def has_expired(self, now: float) -> bool:
        """Report whether the key has expired at `now` (seconds since the epoch)."""
        return self.expires_at is not None and self.expires_at <= now


def new_key() -> str:
    """Return a fresh key: 258 random bits."""
    return "cw_" + secrets.token_urlsafe(33)[:43]


def digest_of(key: str) -> str:
    """Return the digest under which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def in_e2b_form(key: str) -> str:
    """Return a key as clients of E2B take it: another spelling of the same key."""
    return _E2B + key.encode().hex()


def spellings(key: str) -> tuple[str, str]:
    """Return both forms of a key, whichever is given."""
    plain = _of_e2b_form(key) or key
    return plain, in_e2b_form(plain)


def _of_e2b_form(presented: str) -> str | None:
    """Return the key that is spelt so, or None."""
    if not presented.startswith(_E2B):
        return None
    try:
        key = bytes.fromhex(presented[len(_E2B) :]).decode("ascii")
    except ValueError:
        return None
    # Capitals and spaces would be further spellings of it.
    return key if in_e2b_form(key) == presented else None


def check_key(key: str) -> str:
    """Return a key an operator brought, or raise `UsageError` with the reason against it."""
    if len(key) < _SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"CELLWALL_API_KEY: a key needs at least {_SHORTEST} printable ASCII characters",
            remedy="make one with: openssl rand -base64 33",
        )
    return key


class KeyRing:
    """The keys of one server: those of its configuration and those of its store."""

    def __init__(self, records: Iterable[KeyRecord] = ()) -> None:
        """Start with `records`, which stay until the server ends."""
        self._fixed = {record.digest: record for record in records}
        self._stored: dict[str, KeyRecord] = {}
        self._by_id: dict[str, KeyRecord] = {}
        self._name_all()

    @property
    def fixed(self) -> list[KeyRecord]:
        """The keys of the configuration."""
        return list(self._fixed.values())

    def add(self, record: KeyRecord) -> None:
        """Accept one more key until the server ends."""
        self._fixed[record.digest] = record
        self._name_all()

    def replace_stored(self, records: Iterable[KeyRecord]) -> None:
        """Accept `records` besides the fixed keys, and no longer those of the previous call."""
        self._stored = {record.digest: record for record in records}
        self._name_all()

    def change_stored(self, made: Iterable[KeyRecord], gone: Iterable[str]) -> None:
        """Accept further keys besides the fixed ones, and those of some ids no longer."""
        fixed = {each.key_id for each in self._fixed.values()}
        for key_id in set(gone) - fixed:
            record = self._by_id.pop(key_id, None)
            if record is not None:
                self._stored.pop(record.digest, None)
        for record in made:
            self._stored[record.digest] = record
            if record.key_id not in fixed:
                self._by_id[record.key_id] = record

    def _name_all(self) -> None:
        records = (*self._stored.values(), *self._fixed.values())
        self._by_id = {each.key_id: each for each in records}

    def accepted(self) -> set[str]:
        """Return the ids of the keys that are accepted now."""
        now = time.time()
        return {key_id for key_id, each in self._by_id.items() if not each.has_expired(now)}

    def is_accepted(self, key_id: str) -> bool:
        """Report whether the key of that id is accepted now."""
        found = self._by_id.get(key_id)
        return found is not None and not found.has_expired(time.time())

    def holder(self, key_id: str) -> Principal | None:
        """Return the principal of the key of that id, if it is accepted now."""
        found = self._by_id.get(key_id)
        if found is None or found.has_expired(time.time()):
            return None
        return found.principal

    def holders(self, tenant: str) -> list[Principal]:
        """Return the principals of a tenant's keys that are accepted now."""
        now = time.time()
        return [
            each.principal
            for each in self._by_id.values()
            if each.tenant == tenant and not each.has_expired(now)
        ]

    def find(self, presented: str) -> Principal | None:
        """Return the key's principal, or None; the key may be spelt as E2B's clients take it."""
        found = self._find(presented)
        if found is None:
            other = _of_e2b_form(presented)
            found = None if other is None else self._find(other)
        return found

    def _find(self, presented: str) -> Principal | None:
        digest = digest_of(presented)
        record = self._fixed.get(digest) or self._stored.get(digest)
        # A lookup by digest gives nothing away: a guess's digest cannot be chosen.
        if record is None or not hmac.compare_digest(record.digest, digest):
            return None
        if record.has_expired(time.time()):
            return None
        return record.principal


class Failures:
    """Counts refused keys per address: ten in a minute, then one in six seconds."""

    _BURST = 10
    _PER_S = 1 / 6
    _ADDRESSES = 1024

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def is_full(self, address: str) -> bool:
        """Report whether the next failure of that address would have to wait; count none."""
        left, at = self._buckets.get(address, (float(self._BURST), 0.0))
        return left + (time.monotonic() - at) * self._PER_S < 1

    def wait_s(self, address: str) -> float:
        """Count one failure; return 0, or the seconds until the next one is looked at."""
        now = time.monotonic()
        left, at = self._buckets.pop(address, (float(self._BURST), now))
        left = min(float(self._BURST), left + (now - at) * self._PER_S)
        is_refused = left < 1
        self._buckets[address] = (left if is_refused else left - 1, now)
        if len(self._buckets) > self._ADDRESSES:
            self._buckets.popitem(last=False)
        return (1 - left) / self._PER_S if is_refused else 0.0
