"""Upkeep of the directory: each gateway removes what has ended, a round a minute.

`directory.ended` has the rule of each table. The invariant: a sum of a tenant becomes smaller only
by what has a row no longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.cluster.directory.ended import Ended
    from cellwall.cluster.directory.shares import Shares
    from cellwall.cluster.gateway.agreed.quotas import Quotas

_LOOKS = 20
"""Tenants whose nodes are asked in one round for what has ended there without a word."""


class Upkeep:
    """See the module."""

    def __init__(self, ended: Ended, shares: Shares, quotas: Quotas, keys_days: int) -> None:
        """`keys_days`: how many days a key is kept after its end."""
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
        await self._ended.keys(self._keys_days)
        await self._ended.grants()
        await self._ended.places()
        await self._ended.nodes()
        await self._ended.gateways()
        await self._ended.tenants()
