"""When a client over HTTP is gone: its sessions, their connections, and the time between two.

Not the protocol (`http`). A client says goodbye, or its last connection breaks and no other comes
for a moment, or it is silent for long. The invariant: a session that ends here has its sandboxes
destroyed, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.model.limits import Limits
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.apps.mcp.session import Session
    from cellwall.apps.mcp.transport.calls import Calls
    from cellwall.apps.mcp.transport.events import Events
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Message, Receive, Send

    Who = tuple[str, str]
    """Tenant and key."""

_log = logging.getLogger("cellwall.mcp")
GRACE_S = 1.0
"""From the loss of a client's last connection to the end of its session, if none comes back."""
IDLE_S = Limits().idle_s
"""From a client's last request to the end of its session, where no connection of it stands; longer
if a sandbox of it may be unused for longer. Who holds no stream open cannot be seen to be gone."""


class Connection:
    """One request of a session, on its way."""

    def __init__(self) -> None:
        """Neither end has hung up."""
        self.is_lost = False
        self._is_answered = False

    def receiving(self, receive: Receive) -> Receive:
        """Notice that the client hangs up."""

        async def receive_noticed() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not self._is_answered:
                self.is_lost = True
            return message

        return receive_noticed

    def sending(self, send: Send) -> Send:
        """Notice that the answer is whole."""

        async def send_noticed(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._is_answered = True
            await send(message)

        return send_noticed


@dataclass(slots=True)
class VisitingClient:
    """What one client has here."""

    session: Session
    calls: Calls
    """Of its tool calls those that the SDK does not see."""
    events: Events
    """What its streams have said."""
    principal: Principal
    """As whom its latest request came; in that name its tools ask the server."""


class Visit:
    """One client's session, and what stands of its connections."""

    def __init__(
        self,
        session_id: str,
        who: Who,
        client: VisitingClient,
        on_over: Callable[[Visit], None],
    ) -> None:
        """Made by `Visits`."""
        self.session_id = session_id
        self.who = who
        self.client = client
        self._on_over = on_over
        self._standing = 0
        self._has_lost = False
        self._timer: asyncio.TimerHandle | None = None
        self._wait(self._idle_s)

    @contextlib.contextmanager
    def connected(self) -> Iterator[Connection]:
        """Count a request for the length of a block."""
        connection = Connection()
        self._standing += 1
        self._has_lost = False
        self.stop_clock()
        try:
            yield connection
        finally:
            self._standing -= 1
            self._has_lost = self._has_lost or connection.is_lost
            if not self._standing:
                self._wait(GRACE_S if self._has_lost else self._idle_s)

    @property
    def _idle_s(self) -> float:
        running = self.client.session.running
        return max([IDLE_S, *(each.limits.idle_s for each in running)])

    def _wait(self, seconds: float) -> None:
        self.stop_clock()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._on_over, self)

    def stop_clock(self) -> None:
        """It is not over for now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Visits:
    """All of them, by session id."""

    def __init__(self, forget: Callable[[Visit], Awaitable[None]]) -> None:
        """`forget` has the protocol's own session ended."""
        self._forget = forget
        self._all: dict[str, Visit] = {}
        self._tasks = Tasks()

    def add(self, session_id: str, who: Who, client: VisitingClient) -> Visit:
        """Begin one."""
        visit = Visit(session_id, who, client, self._over)
        self._all[session_id] = visit
        return visit

    def get(self, session_id: str) -> Visit | None:
        """Return the visit of that id."""
        return self._all.get(session_id)

    def find(self, session_id: str, who: Who) -> Visit | None:
        """Return the visit of that id if it is theirs."""
        visit = self._all.get(session_id)
        return visit if visit is not None and visit.who == who else None

    def count(self, tenant: str) -> int:
        """Return how many a tenant has."""
        return sum(visit.who[0] == tenant for visit in self._all.values())

    def _over(self, visit: Visit) -> None:
        _log.info("session %s: its client is gone", visit.session_id[:8])
        self._tasks.spawn(self.end(visit))

    async def end(self, visit: Visit) -> None:
        """End one; idempotent."""
        visit.stop_clock()
        if self._all.pop(visit.session_id, None) is None:
            return
        try:
            await self._forget(visit)
        finally:
            await visit.client.session.close()

    async def aclose(self) -> None:
        """End all."""
        for visit in list(self._all.values()):
            self._tasks.spawn(self.end(visit))
        await self._tasks.wait_empty()
