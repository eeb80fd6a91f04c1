"""Replies: the events that may answer a request, and the listeners that receive them.

Used by `channel`, which matches frames to requests, and by the code that sends requests. It reads
nothing and keeps no state of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cellwall.model.errors import CellwallError

if TYPE_CHECKING:
    import asyncio

REPLY = frozenset({"reply", "fail"})
REPLY_WITH_CHUNKS = frozenset({"reply", "fail", "chunk"})
RUN = frozenset(
    {
        *("stdout", "stderr", "cut", "display", "error", "value", "call", "call_dropped"),
        *("started", "done", "fail"),
    }
)
TERMINAL = frozenset({"stdout", "credit", "started", "done", "fail"})
CONNECTION = frozenset({"connected", "data", "credit", "end", "closed", "fail"})
WATCH = frozenset({"data", "reply", "fail"})
FINAL = frozenset({"reply", "fail", "done", "closed"})
"""Events after which no further event of the request comes."""


class ChannelLost(CellwallError):
    """The channel ended during a request. `is_hostile` when the guest broke the protocol."""

    code = "channel_lost"

    def __init__(self, reason: str, *, is_hostile: bool = False) -> None:
        """`reason` is a sentence for an outcome's notes."""
        super().__init__(reason)
        self.is_hostile = is_hostile


class GuestRefused(CellwallError):
    """The guest answered `fail`; `reason` is its code."""

    code = "guest_refused"

    def __init__(self, reason: str, message: str) -> None:
        """`reason` is one word of design/0002."""
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to a plain request."""

    header: Mapping[str, Any]
    body: bytes


class Listener(Protocol):
    """Receiver of the frames of one request; called on the loop, must not block."""

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """Handle one checked frame; raise `FrameError` if its content does not match its kind."""

    def on_lost(self, error: ChannelLost) -> None:
        """Handle the end of the channel: no further frame will come."""


class Single:
    """Listener that resolves a future with the one reply."""

    __slots__ = ("_chunks", "_future")

    def __init__(
        self, future: asyncio.Future[Reply], chunks: Callable[[bytes], None] | None
    ) -> None:
        """`chunks` is called with each piece that comes before the reply."""
        self._future = future
        self._chunks = chunks

    def on_frame(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        """See `Listener`."""
        if kind == "chunk" and self._chunks is not None:
            self._chunks(body)
        elif self._future.done():
            return
        elif kind == "fail":
            self._future.set_exception(
                GuestRefused(str(header["code"])[:40], str(header["message"])[:2000])
            )
        else:
            self._future.set_result(Reply(header, body))

    def on_lost(self, error: ChannelLost) -> None:
        """See `Listener`."""
        if not self._future.done():
            self._future.set_exception(error)
