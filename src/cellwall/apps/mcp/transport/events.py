"""Events: the messages of a session's streams, kept for a client whose connection broke.

Each session has a store of its own, so no client can request another's events, whatever id it
names. The invariant: the stored data is bounded, for a session and for all sessions of a tenant;
the oldest is dropped first, and a client that asks for dropped events gets none of them, rather
than a part.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mcp.server.streamable_http import EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
    from mcp.server.streamable_http import EventCallback, StreamableHTTPServerTransport
    from mcp_types import JSONRPCMessage

    from cellwall.apps.mcp.transport.calls import DirectCall

RETRY_MS = 500
"""Milliseconds after which a client reconnects; its session outlives its last connection by twice
as long."""
PRIMED_FROM = "2025-11-25"
"""First protocol version whose clients accept an event without data."""
SESSION_BYTES = 4 * 1024 * 1024
TENANT_BYTES = 32 * 1024 * 1024
MOST_EVENTS = 1000
_EVENT_BYTES = 200
_making: ContextVar[Events | None] = ContextVar("events of the session that is made", default=None)


class Share:
    """Bytes that all sessions of one tenant have stored."""

    def __init__(self) -> None:
        self.used_bytes = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    stream: str
    message: JSONRPCMessage | None
    """Message; None for the beginning of a stream, and for a direct call, which holds its own
    answer."""
    call: DirectCall | None
    size: int


class Events(EventStore):
    """Event store of one session; see the module."""

    def __init__(self, share: Share) -> None:
        """`share` is the tenant's count."""
        self._share = share
        self._kept: deque[_Kept] = deque()
        self._used_bytes = 0
        self._last = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store a message of the SDK; return its id."""
        size = 0 if message is None else len(message.model_dump_json())
        return self._keep(stream_id, message, None, size)

    def begin(self, call: DirectCall) -> str:
        """Store the beginning of a direct call's stream, which will carry the call's answer."""
        begun = self._keep(f"direct {self._last}", None, call, 0)
        call.when_answered(partial(self._answered, call))
        return begun

    def _keep(
        self, stream: str, message: JSONRPCMessage | None, call: DirectCall | None, size: int
    ) -> str:
        self._last += 1
        size += _EVENT_BYTES
        self._kept.append(_Kept(self._last, stream, message, call, size))
        self._count(size)
        self._fit()
        return str(self._last)

    def _answered(self, call: DirectCall, answer: bytes) -> None:
        """Count the size of a direct call's answer, which the call now holds."""
        for at, each in enumerate(self._kept):
            if each.call is call:
                self._kept[at] = replace(each, size=each.size + len(answer))
                self._count(len(answer))
                self._fit()
                return

    def _fit(self) -> None:
        while self._kept and (
            self._used_bytes > SESSION_BYTES
            or self._share.used_bytes > TENANT_BYTES
            or len(self._kept) > MOST_EVENTS
        ):
            self._count(-self._kept.popleft().size)

    def _count(self, size: int) -> None:
        self._used_bytes += size
        self._share.used_bytes += size

    def call_after(self, event_id: str) -> DirectCall | None:
        """Return the call whose answer follows that event, if it is a direct call's."""
        return next((each.call for each in self._kept if str(each.number) == event_id), None)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send the later events of the same stream; return the stream unless it has ended."""
        seen = next((each for each in self._kept if str(each.number) == last_event_id), None)
        if seen is None:
            return None
        for each in [each for each in self._kept if each.stream == seen.stream]:
            if each.number <= seen.number or each.message is None:
                continue
            await send_callback(EventMessage(each.message, str(each.number)))
            if isinstance(each.message, JSONRPCResponse | JSONRPCError):
                return None
        return seen.stream

    def close(self) -> None:
        """Drop all events; idempotent."""
        self._kept.clear()
        self._count(-self._used_bytes)


class Manager(StreamableHTTPSessionManager):
    """The SDK's session manager, with a separate store for each session.

    Ids of sessions begin with the name of the node, if the server is one: a gateway finds it there.
    """

    node = ""

    def _admit_session(
        self, requestor: AuthorizationContext | None
    ) -> StreamableHTTPServerTransport | None:
        made = super()._admit_session(requestor)
        if made is not None and self.node:
            plain = str(made.mcp_session_id)
            made.mcp_session_id = self.node + plain
            self._server_instances[self.node + plain] = self._server_instances.pop(plain)
        return made

    @property
    def event_store(self) -> EventStore | None:
        """Store of the session that is being created."""
        return _making.get()

    @event_store.setter
    def event_store(self, _store: EventStore | None) -> None:
        """Ignore the SDK's shared store."""


@contextmanager
def making(events: Events) -> Iterator[None]:
    """Give `events` to a session that the manager creates in this block."""
    token = _making.set(events)
    try:
        yield
    finally:
        _making.reset(token)
