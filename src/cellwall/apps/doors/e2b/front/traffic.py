"""Traffic to servers inside sandboxes: any port, by the name of a host or by headers; their health.

The server's own proxy of ports passes it on, so that neither side sees more of the other than
there. The invariant: the sandbox is one of the caller's tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.answers import PLACE, Gone, empty, missing
from cellwall.apps.doors.e2b.facts import host_inside, state_of
from cellwall.apps.doors.e2b.seat import live, seated
from cellwall.model.errors import SandboxUnavailable
from cellwall.server.core.errors import HttpError
from cellwall.server.routes import ports

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.e2b.addressing import Place


async def forward(visit: Visit) -> None:
    """Pass a request on to the port that it is for."""
    request = visit.request
    place: Place | None = request.scope.get(PLACE)
    if place is None:
        raise missing("path: there is nothing")
    record = live(request, place)
    if state_of(record.status) == "paused":
        await seated(visit)  # refuses one that requests do not resume
    try:
        prefix, host = request.scope.get("root_path", ""), host_inside(record.metadata, place.port)
        await ports.passed_on(request, record, place.port, prefix, host)
    except SandboxUnavailable:
        raise Gone(place.sandbox_id) from None
    except HttpError as error:
        if error.code == "port_unreachable":
            raise Gone(place.sandbox_id, place.port) from None
        raise


async def health(visit: Visit) -> None:
    """`GET /health` of a sandbox: whether it runs."""
    place: Place | None = visit.request.scope.get(PLACE)
    if place is None:
        raise missing("path: there is nothing")
    if state_of(live(visit.request, place).status) == "paused":
        raise Gone(place.sandbox_id)
    await empty(visit.request)
