"""Vault of gateways: tenants' secrets in the directory, sealed under a key that gateways share.

PostgreSQL never sees that key. The invariant: a value goes in by `put` and comes out by `find`
alone, for the node that is about to make what names it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from cellwall.cluster.directory.secrets import MOST
from cellwall.model.errors import CapacityError, Conflict, NotFound, UsageError
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.cluster.directory.secrets import Sealed, Secrets, Shown
    from cellwall.model.secret import Secret
    from cellwall.server.secrets.sealing import Seal

_LISTS = 4
"""Lists of one tenant's secrets that one gateway asks for at once."""
SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class Vault:
    """See the module. All raise StoreBusy while the directory is away."""

    def __init__(self, kept: Secrets, seal: Seal | None) -> None:
        """`seal`: None: the operator has given no key, so nothing is set and nothing opened."""
        self._kept = kept
        self._seal = seal
        self._listing: Counter[str] = Counter()
        """How many lists of each tenant's secrets are under way."""

    def check(self) -> Seal:
        """Return the seal. Raises Conflict if there is no key."""
        if self._seal is None:
            raise Conflict(
                "secrets: this gateway has no key to seal them with",
                remedy="give every gateway the same file as secrets_key_file in [server]",
            )
        return self._seal

    async def put(self, tenant: str, secret: Secret) -> dict[str, Any]:
        """Keep a secret in the place of one with its name; return what may be shown of it.

        Raises Conflict, UsageError if there are too many.
        """
        facts = facts_of(secret)
        sealed = self.check().sealed(secret.reveal(), tenant, secret.name, facts)
        text = json.dumps(facts)
        changed_at = await self._kept.put(tenant, secret.name, text, sealed)
        if changed_at is None:
            raise UsageError(f"secrets: there are {MOST}, the most", remedy="remove some")
        return {"name": secret.name, **facts, "changed_at": rfc3339(changed_at)}

    async def names(self, tenant: str) -> list[dict[str, Any]]:
        """Return what may be shown of a tenant's secrets, by name.

        Raises CapacityError if many such lists of the tenant's are under way: one is long, and all
        that gateways commit waits behind it.
        """
        if self._listing[tenant] >= _LISTS:
            raise CapacityError(
                f"secrets: {_LISTS} lists of them are under way",
                retry_after_s=1.0,
                remedy="ask for one at a time",
            )
        self._listing[tenant] += 1
        try:
            rows = await self._kept.shown(tenant)
        finally:
            self._listing[tenant] -= 1
            if not self._listing[tenant]:
                del self._listing[tenant]
        return [
            {"name": row.name, **_facts(row), "changed_at": rfc3339(row.changed_at)} for row in rows
        ]

    async def remove(self, tenant: str, name: str) -> None:
        """Forget a secret; sandboxes that have it keep it until their end. Raises NotFound."""
        if not await self._kept.remove(tenant, name):
            raise no_secret(name)

    async def find(self, tenant: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return secrets by their names, with values, as a node takes them.

        Raises NotFound, Conflict without a key, and UsageError for another key or a changed row.
        """
        seal = self.check()
        rows = {row.name: row for row in await self._kept.of(tenant, names)}
        found = []
        for name in names:
            row = rows.get(name)
            if row is None:
                raise no_secret(name)
            facts = _facts(row)
            value = seal.opened(row.sealed, tenant, name, facts)
            found.append({"name": name, "value": value, **facts})
        return found


def facts_of(secret: Secret) -> dict[str, Any]:
    """Return what of a secret is not secret, and what its value is bound to."""
    return {"hosts": [*map(str, secret.hosts)], "places": [*secret.places]}


def _facts(row: Sealed | Shown) -> dict[str, Any]:
    return dict(json.loads(row.facts))


def no_secret(name: str) -> NotFound:
    """Return the error of a name that a tenant has no secret under."""
    return NotFound(f"secret {name[:100]!r}: there is none", remedy="set it: PUT /secrets/NAME")
