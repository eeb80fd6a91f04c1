"""Seat: one request to the daemon or the interpreter of a sandbox, with the sandbox at hand.

The daemon's and the interpreter's routes are functions of a seat (`SeatRoute`); the door finds the
sandbox before it calls them. The invariant: the sandbox is the caller's own, and, for a caller with
a token of a sandbox, the one of the token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cellwall.apps.doors.e2b.answers import PLACE, Gone
from cellwall.apps.doors.e2b.deadlines import wake
from cellwall.apps.doors.e2b.facts import Facts, state_of
from cellwall.client.live import RemoteSandboxHandle
from cellwall.model.errors import NotFound

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.e2b.addressing import Place
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.server.core.request import Request

SandboxGone = Gone


@dataclass(frozen=True, slots=True)
class Seat:
    """One request, and the sandbox that it is for."""

    request: Request
    client: AsyncClient
    """The server as the caller sees it."""
    sandbox: AsyncSandbox
    """The sandbox, which runs, or is resumed by the next request to it. Its environment has the
    `envVars` of its creation: commands and contexts get them without more ado."""
    facts: Facts

    @property
    def live(self) -> RemoteSandboxHandle:
        """Handle of the sandbox, for requests about it that its object has no method for."""
        return RemoteSandboxHandle(self.client.transport, self.sandbox.facts)


class SeatRoute(NamedTuple):
    """One method on one path of the daemon or the interpreter."""

    method: str
    """Upper case."""
    path: str
    """As clients send it: `/process.Process/Start`, `/contexts/{context_id}`."""
    handler: Callable[[Seat], Awaitable[None]]


async def seated(visit: Visit) -> Seat:
    """Return the seat of a request. Raises SandboxGone if the sandbox cannot serve it."""
    place: Place = visit.request.scope[PLACE]
    try:
        sandbox = await visit.client.attach(place.sandbox_id)
    except NotFound:
        raise SandboxGone(place.sandbox_id) from None
    is_asleep = state_of(sandbox.status) == "paused" and sandbox.facts.get("resume") != "auto"
    if is_asleep or sandbox.status == "stopped":
        raise SandboxGone(place.sandbox_id)
    await wake(sandbox, visit.request.settings.most.life_s)
    return Seat(visit.request, visit.client, sandbox, Facts.of(sandbox))
