"""Webhooks: signed notices to a caller's own server that an execution has ended.

No work waits for one: `send` puts it into a bounded queue and returns. Delivery is at least once
while the server lives; what is not delivered when it ends is lost, and the execution's record is
the truth. The receiver checks this header:

    Cellwall-Signature: t=<seconds since the epoch>,v1=<hex of HMAC-SHA256(secret, t + "." + body)>

with the secret of its tenant, compares in constant time, and refuses a `t` older than five minutes.
`Cellwall-Delivery` is the same in every attempt of one delivery, so that it can be taken once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.posting import Denied, Poster, Resolve, SystemResolver, Unanswered
from cellwall.egress.target import Target, target_of
from cellwall.model.errors import UsageError
from cellwall.surface.shared.tasks import Tasks

_MOST_BYTES = 1024 * 1024
"""Bytes of one delivery's body."""
_AGAIN = frozenset({408, 425, 429})
"""Status codes below 500 that are retried; every 5xx is retried, too."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Retries and limits of deliveries."""

    delays_s: tuple[float, ...] = (1.0, 5.0, 25.0, 120.0)
    """Seconds between attempts, each up to half longer by chance; there is one attempt more."""
    most_waiting: int = 2000
    """Number of deliveries at a time; more are dropped and counted."""
    most_waiting_per_tenant: int = 200
    """Number of deliveries of one tenant, so that its dead receiver does not take all places."""
    at_once: int = 16
    """Number of connections at a time."""
    at_once_per_tenant: int = 4
    """Number of connections of one tenant, so that its slow receiver delays that tenant only."""


@dataclass(frozen=True, slots=True)
class WebhookStatistics:
    """Numbers of deliveries by result."""

    waiting: int
    delivered: int
    failed: int
    """Number given up: refused, denied, or unanswered to the last attempt."""
    dropped: int
    """Number never delivered: too many, too large, an invalid URL, or the server ended."""


@dataclass(frozen=True, slots=True)
class _Delivery:
    id: str
    tenant: str
    target: Target
    body: bytes
    method: str


@dataclass(slots=True)
class _Slots:
    """Connections of one tenant; forgotten when none of its deliveries waits."""

    free: asyncio.Semaphore
    waiting: int = 0


@dataclass
class Webhooks:
    """Queue and sender of webhooks; see the module. Lives on one event loop."""

    secret: bytes
    """The server's, at least 32 random bytes; each tenant's is derived from it."""
    listed: Iterable[str] = ()
    """Networks of the operator that may be posted to beside public ones, also over http."""
    settings: WebhookSettings = WebhookSettings()
    resolve: Resolve | None = None
    tls: ssl.SSLContext | None = None
    _counts: Counter[str] = field(default_factory=Counter)
    _tasks: Tasks = field(default_factory=Tasks)
    _tenants: dict[str, _Slots] = field(default_factory=dict)
    _system: SystemResolver = field(default_factory=SystemResolver)

    def __post_init__(self) -> None:
        """Raise `UsageError` for a short secret or an invalid network."""
        if len(self.secret) < 32:
            raise UsageError("webhooks: the secret is short", remedy="give 32 random bytes")
        self._free = asyncio.Semaphore(self.settings.at_once)
        self._poster = Poster(AddressPolicy(self.listed), self.resolve or self._system, self.tls)

    def secret_of(self, tenant: str) -> str:
        """Return the secret for a tenant's receivers; the HMAC key is this text in ASCII."""
        derived = hmac.new(self.secret, b"webhook\0" + tenant.encode(), hashlib.sha256)
        return "whsec_" + derived.hexdigest()

    def statistics(self) -> WebhookStatistics:
        """Return the numbers so far."""
        count = self._counts
        return WebhookStatistics(
            len(self._tasks), count["delivered"], count["failed"], count["dropped"]
        )

    @staticmethod
    def check(url: str) -> None:
        """Raise `UsageError` for an impossible webhook URL; call it before accepting one."""
        target_of(url)

    def send(
        self,
        url: str,
        payload: Mapping[str, Any],
        *,
        tenant: str = "default",
        method: str = "POST",
    ) -> bool:
        """Queue a delivery; never waits, never raises. False: it was dropped, and counted."""
        try:
            target = target_of(url)
            body = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
        except (UsageError, TypeError, ValueError):
            self._counts["dropped"] += 1
            return False
        slots = self._tenants.get(tenant)
        is_full = len(self._tasks) >= self.settings.most_waiting or (
            slots is not None and slots.waiting >= self.settings.most_waiting_per_tenant
        )
        if is_full or len(body) > _MOST_BYTES:
            self._counts["dropped"] += 1
            return False
        if slots is None:
            slots = _Slots(asyncio.Semaphore(self.settings.at_once_per_tenant))
            self._tenants[tenant] = slots
        slots.waiting += 1
        delivery = _Delivery(secrets.token_hex(16), tenant, target, body, method)
        self._tasks.spawn(self._deliver(delivery, slots))
        return True

    async def _deliver(self, delivery: _Delivery, slots: _Slots) -> None:
        became = "dropped"
        try:
            became = await self._try(delivery, slots)
        finally:
            self._counts[became] += 1
            slots.waiting -= 1
            if slots.waiting == 0:
                self._tenants.pop(delivery.tenant, None)

    async def _try(self, delivery: _Delivery, slots: _Slots) -> str:
        for delay_s in (*self.settings.delays_s, None):
            async with slots.free, self._free:
                is_taken = await self._attempt(delivery)
            if is_taken:
                return "delivered"
            if is_taken is not None or delay_s is None:
                return "failed"
            await asyncio.sleep(delay_s * (1 + random.random() / 2))  # noqa: S311 - no secret
        raise AssertionError

    async def attempt(self, delivery_id: str, tenant: str, url: str, body: bytes) -> bool | None:
        """Deliver once; True: it was taken; False: it never will be; None: it may be later.

        For what keeps its deliveries itself. Raises UsageError for an impossible URL.
        """
        return await self._attempt(_Delivery(delivery_id, tenant, target_of(url), body, "POST"))

    async def _attempt(self, delivery: _Delivery) -> bool | None:
        """Return whether it was taken; None: it may be later."""
        headers = (
            ("Content-Type", "application/json"),
            ("User-Agent", "cellwall-webhook"),
            ("Cellwall-Delivery", delivery.id),
            ("Cellwall-Signature", self.signature(delivery.tenant, delivery.body)),
        )
        try:
            status = await self._poster.post(
                delivery.target, headers, delivery.body, delivery.method
            )
        except Denied:
            return False
        except Unanswered:
            return None
        if 200 <= status < 300:
            return True
        return None if status >= 500 or status in _AGAIN else False

    def signature(self, tenant: str, body: bytes, at: float | None = None) -> str:
        """Return the header's value for a body sent now, or at time `at`."""
        moment = str(int(time.time() if at is None else at))
        key = self.secret_of(tenant).encode()
        signed = hmac.new(key, moment.encode() + b"." + body, hashlib.sha256)
        return f"t={moment},v1={signed.hexdigest()}"

    async def aclose(self, grace_s: float = 5.0) -> None:
        """Wait `grace_s` seconds for deliveries under way, then drop the rest; idempotent."""
        try:
            async with asyncio.timeout(grace_s):
                await self._tasks.wait_empty()
        except TimeoutError:
            await self._tasks.cancel()
        self._system.close()
