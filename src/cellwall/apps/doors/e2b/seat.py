"""Seat: one request to the daemon or the interpreter of a sandbox, with the sandbox at hand.

The daemon's and the interpreter's routes are functions of a seat (`SeatRoute`); the door finds the
sandbox before it calls them. The invariant: the sandbox is the caller's own, and, for a caller with
a token of a sandbox, the one of the token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cellwall.apps.doors.e2b.answers import PLACE, Gone, refused
from cellwall.apps.doors.e2b.deadlines import wake
from cellwall.apps.doors.e2b.facts import Facts, state_of
from cellwall.client.live import RemoteSandboxHandle
from cellwall.client.sandbox import AsyncSandbox
from cellwall.server.auth.ownership import owned

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.apps.doors.e2b.addressing import Place
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.server.core.request import Request
    from cellwall.server.executions.sandboxes import SandboxRecord

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
    """Return the seat of a request. Raises NotYours, or SandboxGone if it cannot be served."""
    request = visit.request
    place: Place | None = request.scope.get(PLACE)
    if place is None:
        raise refused("E2b-Sandbox-Id", "name the sandbox")
    record = live(request, place)
    # One of files alone is booted by a connection: no program is there to hear the request.
    is_still = not record.is_resumed_by_requests or record.keeps == "files"
    if state_of(record.status) == "paused" and is_still:
        raise SandboxGone(place.sandbox_id)
    sandbox = AsyncSandbox(visit.client.transport, record.as_json())
    await wake(sandbox, request.settings.most.life_s)
    return Seat(request, visit.client, sandbox, Facts.of(sandbox))


def live(request: Request, place: Place) -> SandboxRecord:
    """Return the caller's sandbox of a place. Raises `NotYours`, and `SandboxGone` if it has ended.

    Both are answered alike; the guards count and audit the first. It is looked up here, in the same
    process, because every request to a sandbox begins with it.
    """
    record = owned(request.state.sandboxes.all, request.owner, "sandbox", place.sandbox_id)
    if record.status == "stopped":
        raise SandboxGone(place.sandbox_id)
    return record
