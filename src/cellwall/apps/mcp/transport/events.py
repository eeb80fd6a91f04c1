"""What a session's streams have said, kept for a client whose connection broke.

One store for each session, so no client can ask for another's events, whatever it names. The
invariant: what is kept is bounded, for a session and for all sessions of a tenant; the oldest goes
first, and a client that asks for what is gone hears nothing of it, rather than a part.
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

    from mcp.server.streamable_http import EventCallback
    from mcp_types import JSONRPCMessage

    from cellwall.apps.mcp.transport.calls import DirectCall

RETRY_MS = 500
"""After which a client comes back; its session outlives its last connection by twice as long."""
PRIMED_FROM = "2025-11-25"
"""The first version whose clients know an event without data."""
SESSION_BYTES = 4 * 1024 * 1024
TENANT_BYTES = 32 * 1024 * 1024
MOST_EVENTS = 1000
_EVENT_BYTES = 200
_making: ContextVar[Events | None] = ContextVar("events of the session that is made", default=None)


class Share:
    """What all sessions of one tenant keep."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.used_bytes = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    stream: str
    message: JSONRPCMessage | None
    """None for the beginning of a stream, and for one of ours, whose answer its call has."""
    call: DirectCall | None
    size: int


class Events(EventStore):
    """See the module."""

    def __init__(self, share: Share) -> None:
        """`share` is the tenant's."""
        self._share = share
        self._kept: deque[_Kept] = deque()
        self._used_bytes = 0
        self._last = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep one of the SDK's; return its id."""
        size = 0 if message is None else len(message.model_dump_json())
        return self._keep(stream_id, message, None, size)

    def begin(self, call: DirectCall) -> str:
        """Keep that a stream of ours has begun, which will carry the answer of `call`."""
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
        """Count the answer of a call of ours, which it holds from now on."""
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
        """Return the call whose answer follows that event, if it is one of ours."""
        return next((each.call for each in self._kept if str(each.number) == event_id), None)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send what followed on the same stream; return the stream unless it has ended."""
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
        """Keep nothing any more; idempotent."""
        self._kept.clear()
        self._count(-self._used_bytes)


class Manager(StreamableHTTPSessionManager):
    """The SDK's, with a store of its own for each session."""

    @property
    def event_store(self) -> EventStore | None:
        """Return that of the session that is being made."""
        return _making.get()

    @event_store.setter
    def event_store(self, _store: EventStore | None) -> None:
        """Take none that all sessions would share."""


@contextmanager
def making(events: Events) -> Iterator[None]:
    """Have a session that the manager makes in this block keep its events there."""
    token = _making.set(events)
    try:
        yield
    finally:
        _making.reset(token)
