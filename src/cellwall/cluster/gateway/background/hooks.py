"""Webhooks of gateways: notices in the directory, delivered by one gateway at a time.

A notice is written in the transaction of its program's end (`directory.programs`), and removed once
its receiver has taken it: a gateway that is killed between leaves it to the others. The receivers'
secrets are made of the key that gateways share as a file, so that all sign alike and PostgreSQL
knows none. The invariants: no program waits for a notice; a tenant's slow receivers take no more
than its part of the places.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from cellwall.egress.posting import LONGEST_S
from cellwall.egress.webhook import Webhooks, WebhookSettings
from cellwall.model.errors import CellwallError, Conflict, UsageError
from cellwall.server.executions.webhooks import HEADER, sends_none

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cellwall.cluster.directory.notices import Notice, NoticeRows
    from cellwall.surface.shared.tasks import Tasks

_LOOK_S = 0.25
_HOLD_S = 2 * LONGEST_S
"""Seconds for which no other gateway takes a notice that is being delivered."""
_log = logging.getLogger("cellwall.gateway")


class Hooks:
    """See the module."""

    def __init__(
        self,
        rows: NoticeRows,
        tasks: Tasks,
        key: bytes | None,
        *,
        may_send: bool,
        networks: Iterable[str] = (),
        settings: WebhookSettings | None = None,
    ) -> None:
        """`key`: that of secrets; None: there is none, and so no signature.

        `may_send`: whether the operator allows webhooks; `networks`: of the operator's, which they
        may go to beside public addresses. Raises UsageError for one that is none.
        """
        self._rows = rows
        self._tasks = tasks
        self._may_send = may_send
        self._settings = settings or WebhookSettings()
        self._under_way: Counter[str] = Counter()
        """Deliveries of each tenant that have not ended."""
        self._webhooks = None
        if may_send and key is not None:
            secret = hmac.new(key, b"webhooks of gateways", hashlib.sha256).digest()
            self._webhooks = Webhooks(secret, networks)

    def check(self, url: str) -> None:
        """Raise UsageError for a webhook that gateways would never call, Conflict without a key."""
        self._allowed().check(url)

    def shown(self, tenant: str) -> dict[str, Any]:
        """Return what a tenant's receivers need. Raises UsageError, Conflict."""
        return {"secret": self._allowed().secret_of(tenant), "header": HEADER}

    def _allowed(self) -> Webhooks:
        if not self._may_send:
            raise sends_none()
        if self._webhooks is None:
            raise Conflict(
                "webhooks: this gateway has no key to sign them with",
                remedy="give every gateway the same file as secrets_key_file in [server]",
            )
        return self._webhooks

    async def run(self) -> None:
        """Deliver for ever what is due."""
        webhooks = self._webhooks
        if webhooks is None:
            return
        most, of_tenant = self._settings.at_once, self._settings.at_once_per_tenant
        while True:
            room = most - len(self._tasks)
            try:
                under_way = self._under_way.elements()
                due = await self._rows.due(of_tenant, room, _HOLD_S, under_way) if room > 0 else []
            except CellwallError:  # the directory is away
                due = []
            for each in due:
                self._under_way[each.tenant] += 1
                self._tasks.spawn(self._see_to(webhooks, each))
            if not due:
                await asyncio.sleep(_LOOK_S)

    async def _see_to(self, webhooks: Webhooks, notice: Notice) -> None:
        try:
            await self._deliver(webhooks, notice)
        finally:
            self._under_way[notice.tenant] -= 1
            if not self._under_way[notice.tenant]:
                del self._under_way[notice.tenant]

    async def _deliver(self, webhooks: Webhooks, notice: Notice) -> None:
        try:
            is_taken = await webhooks.attempt(
                notice.id, notice.tenant, notice.url, notice.body.encode()
            )
        except UsageError:  # it was checked, by an older gateway
            is_taken = False
        delays_s = self._settings.delays_s
        try:
            if is_taken is None and notice.tries <= len(delays_s):
                delay_s = delays_s[notice.tries - 1]
                after_s = delay_s * (1 + random.random() / 2)  # noqa: S311 - no secret
                await self._rows.again(notice, after_s)
                return
            if not is_taken:
                _log.warning("webhook %s: given up after %d attempts", notice.id, notice.tries)
            await self._rows.over(notice)
        except CellwallError:
            return  # the directory is away: it is delivered again, under the same id
