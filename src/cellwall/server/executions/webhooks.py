"""Notices to callers' own servers that executions have ended, where the operator allows them.

`egress.webhook` delivers them. The record of the end stays the truth: a notice is small, carries no
output, and may be lost. The invariant: no work waits for a notice, and the secret that signs
notices outlives the server wherever there is a store.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cellwall.egress.webhook import Webhooks
from cellwall.model.errors import UsageError
from cellwall.store.records.changes import PutFact

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.observability.alert_rules import Alert
    from cellwall.store.store import Store

_SECRET = "webhook_secret"  # noqa: S105 - the name of a fact
OPERATOR = "default"
"""Tenant whose secret signs notices to the operator."""
HEADER = "Cellwall-Signature"
_SHOWN = ("execution_id", "status", "verdict", "sandbox_id", "started_at")


def ended_notice(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a receiver is told of an execution that has ended with an answer."""
    return {"type": "execution.ended", **{name: answer.get(name) for name in _SHOWN}}


def sends_none() -> UsageError:
    """Return the error for a webhook where the operator allows none."""
    return UsageError(
        "webhook: this server sends none",
        remedy="leave it out, or let the operator set webhooks = true",
    )


class Notices:
    """Sends notices; see the module. Lives on one event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._webhooks: Webhooks | None = None

    async def open(self, store: Store | None) -> None:
        """Load or make the signing secret, and check the settings.

        Raises the store's errors, or `UsageError` for invalid networks.
        """
        flag_url = self._settings.flag_webhook
        if not self._settings.webhooks:
            if flag_url is not None:
                raise UsageError(
                    "settings: flag_webhook is set, but webhooks are off",
                    remedy="set webhooks = true, or remove flag_webhook",
                )
            return
        kept = None if store is None else await store.fact(_SECRET)
        secret = kept or secrets.token_hex(32)
        if store is not None and kept is None:
            await store.write(PutFact(_SECRET, secret))
        self._webhooks = Webhooks(bytes.fromhex(secret), self._settings.webhook_networks)
        if flag_url is not None:
            self._webhooks.check(flag_url)

    def check(self, url: str) -> None:
        """Raise `UsageError` for a webhook that this server would never call."""
        self._allowed().check(url)

    def secret_of(self, tenant: str) -> str:
        """Return the secret for a tenant's receivers; `UsageError` without webhooks."""
        return self._allowed().secret_of(tenant)

    def _allowed(self) -> Webhooks:
        if self._webhooks is None:
            raise sends_none()
        return self._webhooks

    def ended(
        self, owner: str, asked: Mapping[str, Any], answer: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Send the notice about an ended execution, if its request named a webhook."""
        url = asked.get("webhook")
        if url is not None and self._webhooks is not None:
            self._webhooks.send(url, ended_notice(answer()), tenant=owner)

    def put(self, owner: str, url: str, value: Mapping[str, Any]) -> None:
        """Send a result by PUT, as a foreign protocol calls back, to a URL that `check` took."""
        self._allowed().send(url, value, tenant=owner, method="PUT")

    def flagged(self, alert: Alert) -> None:
        """Notify the operator's server that a rule was met, if `flag_webhook` is set."""
        url = self._settings.flag_webhook
        if url is not None and self._webhooks is not None:
            self._webhooks.send(url, {"type": "rule.flag", **asdict(alert)}, tenant=OPERATOR)

    async def aclose(self) -> None:
        """Give deliveries under way a moment to finish, drop the rest."""
        if self._webhooks is not None:
            await self._webhooks.aclose()
