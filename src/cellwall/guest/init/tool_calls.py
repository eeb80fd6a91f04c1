"""Init's side of host tools: calls of one execution on their way to the host and back.

`contexts.py` hands over a connection on which the context sent `call`; from then on the connection
stands for the call and ends with it. Nothing here knows what a tool is or reads arguments: the host
checks both.

Every bound is enforced before the host hears of a call. The host counts again, and treats an init
that lets more through as hostile.
"""

from __future__ import annotations

import json

from cellwall.guest.channel.channel import Channel
from cellwall.guest.channel.frames import Header
from cellwall.guest.channel.requests import Request
from cellwall.guest.init.context_connections import ContextConnection

_MOST_AT_ONCE = 64
_MOST_IN_ALL = 1_000_000
_MOST_NAME_CHARACTERS = 64


class Calls:
    """The calls of one execution; it may make calls only if its request came with tools."""

    def __init__(self, channel: Channel, execution: int, tools: Header) -> None:
        """`tools` is that field of `execute`. Raises Refusal."""
        asked = Request({"op": "execute", **tools}, b"")
        self._channel = channel
        self._execution = execution
        self._most_at_once = asked.integer("at_once", low=1, high=_MOST_AT_ONCE)
        self._left = asked.integer("in_all", low=1, high=_MOST_IN_ALL)
        self._last = 0
        self._waiting: dict[int, ContextConnection] = {}
        self._unread: set[ContextConnection] = set()
        """Connections with an answer that the context has not taken; each still counts as a call.
        """

    def begin(self, connection: ContextConnection, tool: object, body: bytes) -> None:
        """Pass a call on, or refuse it."""
        if not isinstance(tool, str) or not 0 < len(tool) <= _MOST_NAME_CHARACTERS:
            refuse(connection, "unknown", "this is not the name of a tool")
        elif len(self._waiting) + len(self._unread) >= self._most_at_once:
            refuse(connection, "busy", f"{self._most_at_once} calls are under way; wait for one")
        elif not self._left:
            refuse(connection, "limit", "this execution has made all the calls it may make")
        else:
            self._left -= 1
            self._last += 1
            number = self._last
            self._waiting[number] = connection
            connection.on_closed = lambda: self._drop(number)
            event: Header = {"ev": "call", "id": self._execution, "call": number, "tool": tool}
            self._channel.send(event, body)

    def _drop(self, number: int) -> None:
        """Handle a hang-up by the calling thread: an interrupt, or its end."""
        connection = self._waiting.pop(number)
        if self._channel.is_full:
            # Its arguments still use init's memory, so it counts as a call for as long.
            self._unread.add(connection)
            self._channel.wait_for_room(lambda: self._unread.discard(connection))
        self._channel.send({"ev": "call_dropped", "id": self._execution, "call": number})

    def answer(self, request: Request) -> None:
        """Pass the host's answer on; the call may be over by now."""
        connection = self._waiting.pop(request.integer("call"), None)
        if connection is None:
            return
        self._unread.add(connection)
        connection.on_closed = lambda: self._unread.discard(connection)
        connection.send({"op": "answer", "ok": request.flag("ok")}, request.body)
        connection.close_once_sent()

    def close(self) -> None:
        """End all calls because the execution is over: none is answered or waited for any more."""
        waiting, self._waiting = list(self._waiting.values()), {}
        unread, self._unread = list(self._unread), set()
        for connection in waiting:
            connection.on_closed = None
            refuse(connection, "ended", "the execution is over")
        for connection in waiting + unread:
            connection.on_closed = None
            connection.close()


def refuse(connection: ContextConnection, kind: str, message: str) -> None:
    """Answer a call that the host does not hear of."""
    body = json.dumps({"kind": kind, "type": "", "message": message}).encode("ascii")
    connection.send({"op": "answer", "ok": False}, body)
    connection.close_once_sent()
