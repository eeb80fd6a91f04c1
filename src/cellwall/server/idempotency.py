"""Idempotency keys: the same call, sent again, gives the first call's object.

In memory, per tenant. Not deduplication of what sandboxes do. The invariant: a key stands for one
method, path, query and body; with anything else it is a conflict, never a second effect.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from cellwall.model.errors import UsageError
from cellwall.server.errors import HttpError

if TYPE_CHECKING:
    from cellwall.server.call import Call

T = TypeVar("T")
_FORM = re.compile(r"[\x21-\x7e]{1,128}")
_MOST = 10_000
_KEPT_S = 86_400.0


@dataclass(slots=True)
class _Use(Generic[T]):
    digest: bytes
    at: float
    made: T


class Replays(Generic[T]):
    """Which keys were used for what."""

    def __init__(self) -> None:
        """None yet."""
        self._uses: OrderedDict[tuple[str, str], _Use[T]] = OrderedDict()

    def find(self, call: Call) -> T | None:
        """Return what an earlier call with the same key made, or None if there was none."""
        key = _key(call)
        if key is None:
            return None
        use = self._uses.get((call.owner, key))
        if use is None or use.at < time.monotonic() - _KEPT_S:
            return None
        if use.digest != _digest(call):
            raise HttpError(
                409,
                "idempotency",
                "idempotency-key: it was used for another request",
                remedy="use a fresh key for a different request",
            )
        return use.made

    def keep(self, call: Call, made: T) -> None:
        """Remember what this call made."""
        key = _key(call)
        if key is None:
            return
        self._uses[call.owner, key] = _Use(_digest(call), time.monotonic(), made)
        if len(self._uses) > _MOST:
            self._uses.popitem(last=False)

    def drop(self, call: Call) -> None:
        """Forget it: the call started nothing."""
        key = _key(call)
        if key is not None:
            self._uses.pop((call.owner, key), None)


def _key(call: Call) -> str | None:
    key = call.headers.get("idempotency-key")
    if key is not None and not _FORM.fullmatch(key):
        raise UsageError(
            "idempotency-key: not 1 to 128 printable ASCII characters", remedy="use a UUID"
        )
    return key


def _digest(call: Call) -> bytes:
    hashed = hashlib.sha256()
    for part in (
        call.scope["method"].encode(),
        call.scope["path"].encode("utf-8", "surrogateescape"),
        call.scope.get("query_string", b""),
        call.scope.get("cellwall.body", b""),
    ):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()
