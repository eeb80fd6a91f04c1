"""Upkeep of the directory: each gateway removes what has ended, a round a minute.

`directory.ended` has the rule of each table. The invariant: a sum of a tenant becomes smaller only
by what has a row no longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.cluster.gateway.callers import Caller, said_of
from cellwall.cluster.gateway.data.places import Place
from cellwall.model.errors import CellwallError
from cellwall.server.auth.keys import Principal
from cellwall.store.records.errors import StoreBusy

if TYPE_CHECKING:
    from cellwall.cluster.directory.ended import Ended
    from cellwall.cluster.directory.places import PlaceRow, PlaceRows
    from cellwall.cluster.directory.shares import Shares
    from cellwall.cluster.gateway.agreed.quotas import Quotas
    from cellwall.cluster.gateway.data.finder import Finder
    from cellwall.engine.scheduling.quotas import Tenants

_LOOKS = 20
"""Tenants whose nodes are asked in one round for what has ended there without a word."""


class Leftovers:
    """Places of what was claimed and is nowhere: a build that failed, a removal half told."""

    def __init__(self, rows: PlaceRows, finder: Finder, tenants: Tenants) -> None:
        """`tenants` knows the tier by which a node hears of each."""
        self._rows = rows
        self._finder = finder
        self._tenants = tenants

    async def round(self) -> None:
        """Look after some places that nothing has claimed for a day. Raises StoreBusy."""
        for row in await self._rows.old(_LOOKS):
            try:
                await self._look_after(row)
            except StoreBusy:
                raise
            except CellwallError:  # a node that may have it does not answer
                continue

    async def _look_after(self, row: PlaceRow) -> None:
        """Free a name of which no node has anything; of a lost node that is said for a while."""
        if self._finder.is_lost(row.node):
            return
        tenant = row.tenant
        said = said_of(Principal(tenant, "gateway", "run"), self._tenants.tier(tenant))
        kind, _, name = row.thing.partition(":")
        asking = Caller(Principal(tenant, "gateway", "run"), said, frozenset())
        if await self._finder.asked(asking, kind, name) is None:
            await self._finder.places.forget(tenant, row.thing, Place(row.node, row.uses))


class Upkeep:
    """See the module."""

    def __init__(
        self,
        ended: Ended,
        shares: Shares,
        quotas: Quotas,
        leftovers: Leftovers,
        keys_days: int,
    ) -> None:
        """`keys_days`: how many days a key is kept after its end."""
        self.leftovers = leftovers
        self._ended = ended
        self._shares = shares
        self._quotas = quotas
        self._keys_days = keys_days

    async def round(self) -> None:
        """Remove what has ended. Raises StoreBusy; the next round goes on then."""
        for tenant in await self._ended.with_old_leases():
            await self._shares.reap(tenant)
        for tenant in await self._ended.with_old_sandboxes(_LOOKS):
            await self._quotas.look(tenant)
        await self.leftovers.round()
        await self._ended.keys(self._keys_days)
        await self._ended.grants()
        await self._ended.places()
        await self._ended.nodes()
        await self._ended.gateways()
        await self._ended.tenants()
