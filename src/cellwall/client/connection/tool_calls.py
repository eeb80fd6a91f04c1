"""Tool calls: answer the calls of an execution on a server to functions of this process.

`attempts` starts it when the execution's id is known and ends it. `surface.tools.calls` interprets
a call; this module carries it. The invariant: when `serve` has returned or was cancelled, no
function of the caller is awaited for this execution; a lost connection runs no call twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import httpx

from cellwall.client.connection.streaming import objects
from cellwall.client.connection.transport import NDJSON, Ask, Json, Transport
from cellwall.model.errors import CellwallError, Conflict, NotFound
from cellwall.surface.shared.tasks import Tasks
from cellwall.surface.tools.calls import refusal
from cellwall.surface.tools.tools import Incoming

if TYPE_CHECKING:
    from cellwall.surface.tools.calls import Answer
    from cellwall.surface.tools.tools import Offer

_GRACE_S = 1.0
"""Seconds for cancelled functions to clean up."""
_log = logging.getLogger("cellwall")


class ToolCalls:
    """The tool calls of one execution; see the module. Lives on one event loop."""

    def __init__(self, transport: Transport, offer: Offer, place: str) -> None:
        """`place` is the path of the execution."""
        self._transport = transport
        self._place = f"{place}/calls"
        self._handler = offer.handler()
        self._tasks = Tasks()
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._begun: set[int] = set()
        """Numbers of the calls begun, also those whose answer never arrived: the server repeats
        waiting calls on each connection."""

    async def serve(self) -> None:
        """Answer calls until the execution is over, reconnecting as often as necessary."""
        try:
            await self._follow()
        except CellwallError as error:
            # the execution was over before the connection
            if not isinstance(error, (Conflict, NotFound)):
                _log.warning("calls to tools are not answered any more: %s", error)
        finally:
            await self._end()

    async def _follow(self) -> None:
        budget = self._transport.budget()
        ask = Ask("GET", self._place, accept=NDJSON, is_held=True)
        while True:
            try:
                async with self._transport.stream(ask, budget) as response:
                    async for value in objects(response):
                        budget.progress()
                        if value["type"] == "end":
                            return
                        self._take(value)
                raise httpx.RemoteProtocolError("the stream ended before the execution")
            except httpx.TransportError as error:
                await budget.wait(error, was_held=True)

    def _take(self, value: Json) -> None:
        number = value["call"]
        if value["type"] == "call_dropped":
            task = self._under_way.get(number)
            if task is not None:
                task.cancel()
        elif number not in self._begun:
            self._begun.add(number)
            task = self._tasks.spawn(self._answer(value))
            self._under_way[number] = task
            task.add_done_callback(lambda _: self._under_way.pop(number, None))

    async def _answer(self, value: Json) -> None:
        size, arguments = value["arguments_bytes"], value["arguments"]
        call = Incoming(value["call"], value["tool"], size, lambda: arguments)
        answer = await self._handler.answer(call)
        try:
            await self._send(call.number, answer)
        except (Conflict, NotFound):
            return  # the call's program no longer waits for it
        except CellwallError as error:
            _log.warning("tool %s: its answer was not taken: %s", call.tool, error)
            with contextlib.suppress(CellwallError):
                await self._send(call.number, refusal("raised", "its answer was not taken"))

    async def _send(self, number: int, answer: Answer) -> None:
        name = b"result" if answer.is_ok else b"error"
        await self._transport.json(
            Ask(
                "POST",
                f"{self._place}/{number}",
                content=b'{"%s":%s}' % (name, answer.body),
                media="application/json",
                is_repeatable=True,  # a second one is refused: the call is over by then
            )
        )

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._tasks.cancel()
        except TimeoutError:
            return
