"""Where things lie that are named without their node: a tenant's volumes and templates.

In this gateway's memory, where it is alone; `agreed.places` is the same for several. A place says
where a thing is made, or was found; whether it is there is for its node to say. The invariant: a
name has one place, so two requests that make it at once make it at one node, which makes it once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, Protocol

_MOST = 100_000


class Place(NamedTuple):
    """Where a thing is, or is about to be."""

    node: str
    """Name of the node, which may be lost since."""
    uses: int
    """How often the place was claimed again; 0: this claim has made it."""


class Places(Protocol):
    """The places of all tenants; `thing` is a kind and a name, as `volume:data`.

    What several gateways agree on raises StoreBusy while their directory is away.
    """

    async def claim(self, tenant: str, thing: str, node: str) -> Place:
        """Return the place that a thing has, or has from now on at that node."""

    async def find(self, tenant: str, thing: str) -> Place | None:
        """Return the place that a thing has."""

    async def note(self, tenant: str, thing: str, node: str, instead_of: str) -> None:
        """Have a thing where it was found; `instead_of`: the node that it had, empty: none."""

    async def forget(self, tenant: str, thing: str, place: Place) -> None:
        """Free a name, unless its place was claimed again or changed meanwhile."""

    async def of(self, tenant: str, kind: str) -> dict[str, str]:
        """Return the node of each name of a kind."""


class OwnPlaces:
    """See the module; what is not remembered, as after a restart, is asked of the nodes."""

    def __init__(self) -> None:
        self._all: OrderedDict[tuple[str, str], Place] = OrderedDict()

    async def claim(self, tenant: str, thing: str, node: str) -> Place:
        """Return the place that a thing has, or has from now on at that node."""
        known = self._all.get((tenant, thing))
        place = Place(node, 0) if known is None else known._replace(uses=known.uses + 1)
        self._put(tenant, thing, place)
        return place

    async def find(self, tenant: str, thing: str) -> Place | None:
        """Return the place that a thing has."""
        return self._all.get((tenant, thing))

    async def note(self, tenant: str, thing: str, node: str, instead_of: str) -> None:
        """Have a thing where it was found."""
        known = self._all.get((tenant, thing), Place("", 0))
        if known.node == instead_of:
            self._put(tenant, thing, Place(node, known.uses + 1))

    async def forget(self, tenant: str, thing: str, place: Place) -> None:
        """Free a name, unless its place was claimed again or changed meanwhile."""
        if self._all.get((tenant, thing)) == place:
            del self._all[tenant, thing]

    async def of(self, tenant: str, kind: str) -> dict[str, str]:
        """Return the node of each name of a kind."""
        return {
            thing.partition(":")[2]: place.node
            for (owner, thing), place in self._all.items()
            if owner == tenant and thing.startswith(f"{kind}:")
        }

    def _put(self, tenant: str, thing: str, place: Place) -> None:
        self._all[tenant, thing] = place
        self._all.move_to_end((tenant, thing))
        if len(self._all) > _MOST:
            self._all.popitem(last=False)
