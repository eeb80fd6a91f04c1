"""Where a tenant's volumes and templates lie, as several gateways agree on it (`data.places`).

The invariant: a name is claimed in the directory before any node is asked to make it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.cluster.directory.places import MOST
from cellwall.cluster.gateway.data.places import Place
from cellwall.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from cellwall.cluster.directory.places import PlaceRows


class AgreedPlaces:
    """The places of all tenants. All raise StoreBusy."""

    def __init__(self, rows: PlaceRows) -> None:
        self._rows = rows

    async def claim(self, tenant: str, thing: str, node: str) -> Place:
        """Return the place that a thing has, or has from now on at that node.

        Raises QuotaExceeded if the tenant has very many.
        """
        row = await self._rows.claim(tenant, thing, node)
        if row is None:
            raise QuotaExceeded(
                "names",
                f"{thing[:80]}: a tenant has at most {MOST} volumes and templates",
                retry_after_s=60.0,
                remedy="remove some",
            )
        return Place(*row)

    async def find(self, tenant: str, thing: str) -> Place | None:
        """Return the place that a thing has."""
        row = await self._rows.find(tenant, thing)
        return None if row is None else Place(*row)

    async def note(self, tenant: str, thing: str, node: str, instead_of: str) -> None:
        """Have a thing where it was found."""
        await self._rows.note(tenant, thing, node, instead_of)

    async def forget(self, tenant: str, thing: str, place: Place) -> None:
        """Free a name, unless its place was claimed again or changed meanwhile."""
        await self._rows.forget(tenant, thing, place.node, place.uses)

    async def of(self, tenant: str, kind: str) -> dict[str, str]:
        """Return the node of each name of a kind."""
        rows = await self._rows.of(tenant, f"{kind}:")
        return {thing.partition(":")[2]: node for thing, node in rows.items()}
