"""Attempt: one execution or command under way on the server, seen from the client.

It is requested once, under an idempotency key, and answered as one object or followed event by
event. The invariants: a lost connection neither runs anything twice nor loses an event silently,
and a caller that leaves early ends its execution.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx

from cellwall.client.connection.streaming import objects
from cellwall.client.connection.tool_calls import ToolCalls
from cellwall.client.connection.transport import NDJSON, Ask, Json, Transport
from cellwall.model.errors import CellwallError
from cellwall.model.ids import new_id
from cellwall.wire.reading import error_of, event_of

if TYPE_CHECKING:
    from cellwall.model.execution import Event
    from cellwall.surface.shared.callbacks import OnEvent
    from cellwall.surface.tools.tools import Offer

_CANCEL_S = 2.0
"""Seconds to wait for the server's confirmation of a cancellation; the rest is done in the
background."""


class Attempt:
    """One attempt; see the module."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        body: Mapping[str, Any],
        *,
        header: str = "x-execution-id",
        things: str = "/executions",
        tools: Offer | None = None,
    ) -> None:
        """`path` is where it is requested, `things` where it is found by the id in `header`.

        Calls to `tools` are answered while its events are followed.
        """
        self._transport = transport
        self._header = header
        self._things = things
        if transport.is_near:
            body = {**body, "on_disconnect": "cancel"}
        key = None if transport.is_near else new_id()
        self._ask = Ask("POST", path, body=body, key=key, is_held=True)
        self.id: str | None = None
        self._tools = tools
        self._serving: asyncio.Task[None] | None = None

    async def perform(self, on_event: OnEvent | None) -> Json:
        """Return the object at the end; pass events to `on_event` as they arrive."""
        if on_event is None and self._tools is None:
            return await self._answer()
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if on_event is not None:
                    on_event(event)
        return await self.object()

    async def _answer(self) -> Json:
        try:
            return await self._transport.json(_with(self._ask, accept="application/json"))
        except asyncio.CancelledError:
            await self.cancel()
            raise

    async def object(self) -> Json:
        """Return the server's current object of it."""
        return await self._transport.json(Ask("GET", self._place()))

    def _place(self) -> str:
        return f"{self._things}/{self.id}"

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield its events, the last one is `end`; leaving early cancels it.

        A `gap` names the events that a lost connection has cost. Raises an error of the server.
        """
        is_over = False
        try:
            async with contextlib.aclosing(
                follow(self._transport, self._where, self._on_headers)
            ) as events:
                async for event in events:
                    is_over = event.kind == "end"
                    yield event
        except CellwallError:
            is_over = True
            raise
        finally:
            if self._serving is not None:
                self._serving.cancel()
                await asyncio.wait({self._serving})
            if not is_over:
                await self.cancel()

    def _where(self, after: int) -> Ask:
        if self.id is None:
            return _with(self._ask, accept=NDJSON)
        return events_of(self._place(), after)

    def _on_headers(self, response: httpx.Response) -> None:
        self.id = response.headers.get(self._header, self.id)
        if self._tools is not None and self._serving is None:
            calls = ToolCalls(self._transport, self._tools, self._place())
            self._serving = self._transport.tasks.spawn(calls.serve())

    async def cancel(self) -> None:
        """End it; returns within seconds, even if the server does not answer."""
        if self._transport.is_near:
            return  # the server notices the disconnect by itself
        task = self._transport.tasks.spawn(self._cancel())
        await asyncio.wait({task}, timeout=_CANCEL_S)

    async def _cancel(self) -> None:
        with contextlib.suppress(CellwallError, httpx.TransportError):
            if self.id is None:
                # The same call again: its headers name the execution that the first one started.
                async with self._transport.stream(_with(self._ask, accept=NDJSON)) as response:
                    self._on_headers(response)
            await self._transport.request(Ask("DELETE", self._place()))


def events_of(place: str, after: int) -> Ask:
    """Return the request for events after number `after` of the object at `place`."""
    return Ask("GET", f"{place}/events", {"after": after}, accept=NDJSON, is_held=True)


async def follow(
    transport: Transport,
    where: Callable[[int], Ask],
    on_headers: Callable[[httpx.Response], None] = lambda _: None,
    after: int = 0,
) -> AsyncGenerator[Event, None]:
    """Yield events after number `after` to the `end`, reconnecting as often as necessary."""
    budget = transport.budget()
    while True:
        try:
            async with transport.stream(where(after), budget) as response:
                on_headers(response)
                async for value in objects(response):
                    budget.progress()
                    event = _event(value)
                    after = event.seq
                    yield event
                    if event.kind == "end":
                        return
            raise httpx.RemoteProtocolError("the stream ended before its last event")
        except httpx.TransportError as error:
            await budget.wait(error, was_held=True)


def _event(value: Json) -> Event:
    if value["type"] == "end" and value.get("failure") is not None:
        raise error_of(value["failure"])
    return event_of(value)


def _with(ask: Ask, *, accept: str) -> Ask:
    return replace(ask, accept=accept)
