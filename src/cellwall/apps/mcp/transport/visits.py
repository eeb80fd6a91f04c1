"""Visits: the sessions of clients over HTTP, their connections, and the timers of their ends.

The protocol is in `http`. A client ends its session, or its last connection breaks and no other
comes within a moment, or it sends nothing for long. The invariant: a session that ends here has its
sandboxes destroyed, however it ends.
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
    """Pair of tenant and key."""

_log = logging.getLogger("cellwall.mcp")
GRACE_S = 1.0
"""Seconds from the loss of a client's last connection to the end of its session, unless it
reconnects."""
IDLE_S = Limits().idle_s
"""Seconds from a client's last request to the end of its session, while it has no connection open;
longer if one of its sandboxes may be unused for longer. The loss of a client without an open stream
cannot be detected."""


class Connection:
    """One request of a session under way."""

    def __init__(self) -> None:
        self.is_lost = False
        self._is_answered = False

    def receiving(self, receive: Receive) -> Receive:
        """Return a wrapper of `receive` that records the client's disconnect."""

        async def receive_noticed() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not self._is_answered:
                self.is_lost = True
            return message

        return receive_noticed

    def sending(self, send: Send) -> Send:
        """Return a wrapper of `send` that records the end of the answer."""

        async def send_noticed(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self._is_answered = True
            await send(message)

        return send_noticed


@dataclass(slots=True)
class VisitingClient:
    """Objects of one client."""

    session: Session
    calls: Calls
    """Tool calls that bypass the SDK."""
    events: Events
    """Stored events of its streams."""
    principal: Principal
    """Principal of its latest request; its tools send their requests in that name."""


class Visit:
    """One client's session, with its open connections."""

    def __init__(
        self,
        session_id: str,
        who: Who,
        client: VisitingClient,
        on_over: Callable[[Visit], None],
    ) -> None:
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
        """Stop the timer of the end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Visits:
    """All visits, by session id."""

    def __init__(self, forget: Callable[[Visit], Awaitable[None]]) -> None:
        """`forget` ends the protocol's own session."""
        self._forget = forget
        self._all: dict[str, Visit] = {}
        self._tasks = Tasks()

    def add(self, session_id: str, who: Who, client: VisitingClient) -> Visit:
        """Begin a visit."""
        visit = Visit(session_id, who, client, self._over)
        self._all[session_id] = visit
        return visit

    def get(self, session_id: str) -> Visit | None:
        """Return the visit of that id."""
        return self._all.get(session_id)

    def find(self, session_id: str, who: Who) -> Visit | None:
        """Return the visit of that id if it belongs to `who`."""
        visit = self._all.get(session_id)
        return visit if visit is not None and visit.who == who else None

    def count(self, tenant: str) -> int:
        """Return the number of a tenant's visits."""
        return sum(visit.who[0] == tenant for visit in self._all.values())

    def _over(self, visit: Visit) -> None:
        _log.info("session %s: its client is gone", visit.session_id[:8])
        self._tasks.spawn(self.end(visit))

    async def end(self, visit: Visit) -> None:
        """End a visit; idempotent."""
        visit.stop_clock()
        if self._all.pop(visit.session_id, None) is None:
            return
        try:
            await self._forget(visit)
        finally:
            await visit.client.session.close()

    async def aclose(self) -> None:
        """End all visits."""
        for visit in list(self._all.values()):
            self._tasks.spawn(self.end(visit))
        await self._tasks.wait_empty()
