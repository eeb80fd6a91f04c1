"""The removal of a volume or a template: at the node that has it, and of the name after that.

The invariant: a name is free again only once its node has said that there is nothing of it, or is
lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cellwall.model.errors import CellwallError, NodeLost

if TYPE_CHECKING:
    from cellwall.cluster.gateway.data.finder import Finder
    from cellwall.cluster.gateway.data.places import Place
    from cellwall.cluster.gateway.data.visit import Visit

_GONE = (200, 404)


async def remove(
    visit: Visit, finder: Finder, thing: str, shown: str, free: Callable[[Place], Awaitable[None]]
) -> None:
    """Have a thing removed, and answer; of one that is lost the name is free again.

    `thing` is a kind and a name, as `volume:data`, `shown` how the caller calls it; `free` frees
    the name that a place had.
    """
    kind, _, name = thing.partition(":")
    place = await finder.places.find(visit.tenant, thing)
    try:
        node = await finder.node_of(visit.caller, kind, name)
    except NodeLost:
        if place is not None:
            await finder.places.forget(visit.tenant, thing, place)
        visit.answer(200, {"message": "its node was lost; the name is free", "id": shown})
        return
    answer = await visit.call(node)
    if place is not None and answer.status in _GONE:
        with contextlib.suppress(CellwallError):  # it is removed; its name stays at that node
            await free(place)
    visit.pass_on(answer)
