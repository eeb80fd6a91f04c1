"""The use of an idempotency key that several gateways agree on.

A key's request is claimed for one node and one id before any node is asked; a repeat at any
gateway finds the claim, and asks that node under the same id, which answers with what the first
has made.
The node compares the bodies, as a server does; only where it is lost the digests here decide. The
invariant: a claim is given up only if no other request can begin anything under its id.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import TYPE_CHECKING

from cellwall.cluster.directory.claims import Claim
from cellwall.cluster.gateway.replays import NO_KEY
from cellwall.model.ids import GATEWAYS
from cellwall.server.core.errors import HttpError

if TYPE_CHECKING:
    from cellwall.cluster.directory.claims import Claims
    from cellwall.cluster.gateway.book import Book
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.replays import Use
    from cellwall.cluster.gateway.wire.heads import RequestHead

KEY_FORM = re.compile(r"[\x21-\x7e]{1,128}")
"""Of a key as a server takes it; it refuses another."""


def digest_of(head: RequestHead, body: bytes) -> bytes:
    """Return the digest by which a request is compared with a later one of its key."""
    hashed = hashlib.sha256()
    for part in (head.method, head.target, body):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def used_before() -> HttpError:
    """Return the error for a key of another request."""
    return HttpError(
        409,
        "idempotency",
        "idempotency-key: it was used for another request",
        remedy="use a fresh key for a different request",
    )


class AgreedReplays:
    """The uses of all keys."""

    def __init__(self, claims: Claims, book: Book) -> None:
        """`book` knows what is lost."""
        self._claims = claims
        self._book = book

    def use(self, head: RequestHead, caller: Caller | None) -> Use:
        """Return the use of a request's key."""
        key = head.first(b"idempotency-key")
        if caller is None or not KEY_FORM.fullmatch(key):
            return NO_KEY
        return _Agreed(self._claims, self._book, caller.principal.tenant, key, head)


class _Agreed:
    """The use of a key by one request."""

    wants_body = may_move = True

    def __init__(
        self, claims: Claims, book: Book, tenant: str, key: str, head: RequestHead
    ) -> None:
        self._claims = claims
        self._book = book
        self._tenant, self._key = tenant, key
        self._head = head
        self._digest = b""
        self._claim: Claim | None = None
        self._claimed_s = 0.0
        self.is_first = False
        self.node = ""

    def take_body(self, pieces: list[bytes] | None) -> None:
        """Take its digest."""
        if pieces is None:
            return
        self._digest = digest_of(self._head, b"".join(pieces))

    async def goes(self, node: str, offered: str) -> str:
        """Claim the key for a node; empty: another node has it. Raises StoreBusy, HttpError."""
        if self._claim is not None and self._claim.node == node:
            return self._claim.offered
        wanted = Claim(self._digest, node, offered)
        claim = await self._claims.claim(self._tenant, self._key, wanted)
        self._claim, self.is_first = claim, claim.offered == offered
        self._claimed_s = asyncio.get_running_loop().time()
        if claim.node != node:
            self._check_lost(claim)
            self.node = claim.node
            return ""
        return claim.offered

    @property
    def age_s(self) -> float:
        """Seconds since the key was claimed."""
        if self._claim is None:
            return 0.0
        return self._claim.age_s + asyncio.get_running_loop().time() - self._claimed_s

    def _check_lost(self, claim: Claim) -> None:
        """Refuse another request under the key of one that is lost: no node compares them."""
        is_known = claim.digest and self._digest
        if is_known and claim.node in self._book.lost and claim.digest != self._digest:
            raise used_before()
        if claim.node == GATEWAYS:  # a program in the background, which this is not
            raise used_before()

    async def did_not(self, *, is_settled: bool = False) -> bool:
        """Give the claim up. Raises StoreBusy: the claim stays, and a repeat finds it."""
        claim = self._claim
        if claim is None or not (self.is_first or is_settled):
            return False
        is_given_up = await self._claims.release(
            self._tenant, self._key, claim.offered, is_settled=is_settled
        )
        if is_given_up or is_settled:  # what is settled and no longer there has moved
            self._claim, self.node = None, ""
        return is_given_up or is_settled

    def leave(self) -> None:
        """Leave the claim: it is of all gateways, and of later repeats."""
