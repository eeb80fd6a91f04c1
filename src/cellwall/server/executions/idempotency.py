"""Idempotency keys: a repeated request with the same key gets the first one's object.

Keys are per tenant and last 24 hours, on disk together with what the request made; memory has the
latest ones. Effects inside sandboxes are not deduplicated. The invariant: a key stands for one
method, path, query and body; with any other request it is a conflict, never a second effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.server.core.errors import HttpError
from cellwall.server.core.times import steady
from cellwall.store.records.changes import KeepReplay
from cellwall.store.records.rows import ReplayRow

if TYPE_CHECKING:
    from cellwall.server.core.request import Request
    from cellwall.store.store import Store

_FORM = re.compile(r"[\x21-\x7e]{1,128}")
_MOST = 10_000
"""Number of uses kept in memory; older ones are read from the store."""
_KEPT_S = 86_400.0


class Use:
    """One use of an idempotency key. Made by `Replays`."""

    __slots__ = ("_at", "_digest", "_kind", "_replays", "_settled", "key", "owner", "thing_id")

    def __init__(self, replays: Replays, owner: str, key: str, kind: str, digest: bytes) -> None:
        self._replays = replays
        self._kind = kind
        self._digest = digest
        self._at = steady()
        self._settled: asyncio.Future[None] | None = None
        self.owner = owner
        self.key = key
        self.thing_id: str | None = None
        """Id of the object the request made; None until it is known."""

    @property
    def is_old(self) -> bool:
        """Whether the use has expired."""
        return self._at < steady() - _KEPT_S

    def changes(self, thing_id: str) -> tuple[KeepReplay, ...]:
        """Return the changes that make the use durable, for the transaction of the made object."""
        row = ReplayRow(self.owner, self.key, self._digest, self._kind, thing_id, self._at)
        return (KeepReplay(row),)

    def check(self, digest: bytes) -> None:
        """Raise a 409 unless `digest` is that of the first request."""
        if self._digest != digest:
            raise HttpError(
                409,
                "idempotency",
                "idempotency-key: it was used for another request",
                remedy="use a fresh key for a different request",
            )

    def made(self, thing_id: str) -> None:
        """Note the id of the made object; a repeated request gets that object from now on."""
        self.thing_id = thing_id
        self._wake()

    def drop(self) -> None:
        """Forget the use: the request started nothing."""
        self._replays.forget(self)
        self._wake()

    def _wake(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def wait_settled(self) -> None:
        """Return when the made object is known, or when the request turned out to make nothing."""
        if self.thing_id is None:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)


class Replays:
    """The uses of all keys, in memory and in the store."""

    def __init__(self, store: Store | None) -> None:
        """Without a store (None) the uses do not outlive this server."""
        self._store = store
        self._uses: OrderedDict[tuple[str, str], Use] = OrderedDict()
        self._since = steady()
        """Of every use since then memory knows."""

    @contextlib.asynccontextmanager
    async def using(self, request: Request, kind: str) -> AsyncIterator[Use | None]:
        """Give the use of the request's key, or None if the request has no key.

        If the use has a `thing_id`, an earlier request made that object; otherwise the block calls
        `made`. Leaving the block without that forgets the use.
        """
        use = await self._open(request, kind)
        try:
            yield use
        finally:
            if use is not None and use.thing_id is None:
                use.drop()

    async def _open(self, request: Request, kind: str) -> Use | None:
        key = _key(request)
        if key is None:
            return None
        digest = _digest(request)
        while True:
            use = self._uses.get((request.owner, key))
            if use is None or use.is_old:
                use = self._uses[request.owner, key] = Use(self, request.owner, key, kind, digest)
                await self._ask_store(use)
                self._trim()
                use.check(digest)
                return use
            use.check(digest)
            await use.wait_settled()
            if use.thing_id is not None:
                return use

    async def _ask_store(self, use: Use) -> None:
        """Look up in the store whether an earlier server or request used the key."""
        try:
            store = self._store
            row = None if store is None else await store.replay(use.owner, use.key)
        except BaseException:
            use.drop()
            raise
        if row is not None and row.at >= steady() - _KEPT_S:
            use._digest, use._at = row.digest, row.at
            use.made(row.thing_id)

    def _trim(self) -> None:
        if len(self._uses) > _MOST:
            oldest = next(iter(self._uses.values()))
            if oldest.thing_id is not None:
                self.forget(oldest)
                self._since = max(self._since, oldest._at)

    @property
    def known_s(self) -> float:
        """Seconds back for which the use of every key is known."""
        return _KEPT_S if self._store is not None else steady() - self._since

    async def made(self, owner: str, key: str, thing_id: str) -> bool:
        """Report whether a key's request made the object of that id, which may be kept no longer.

        The last look is into memory, and nothing is awaited after it.
        """
        row = None if self._store is None else await self._store.replay(owner, key)
        use = self._uses.get((owner, key))
        return any(each is not None and each.thing_id == thing_id for each in (row, use))

    def forget(self, use: Use) -> None:
        """Remove the use from memory."""
        if self._uses.get((use.owner, use.key)) is use:
            del self._uses[use.owner, use.key]


def gone() -> HttpError:
    """Return the error for a key whose object is no longer kept."""
    return HttpError(
        410,
        "gone",
        "idempotency-key: it was used, and what it made is no longer kept",
        remedy="it is not done twice under one key; use a fresh one to do it again",
    )


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not _FORM.fullmatch(key):
        raise UsageError(
            "idempotency-key: not 1 to 128 printable ASCII characters", remedy="use a UUID"
        )
    return key


def _digest(request: Request) -> bytes:
    hashed = hashlib.sha256()
    for part in (
        request.scope["method"].encode(),
        request.scope["path"].encode("utf-8", "surrogateescape"),
        request.scope.get("query_string", b""),
        request.scope.get("cellwall.body", b""),
    ):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()
