"""Submitted execution: an execution in the background, known to the client by its id.

Made by `submit`, or by `execution` from an id, also in another process and after a restart of the
server. Calls that wait for their execution are in `attempts`. The invariant: nothing here starts
anything, so every call may be repeated, and leaving early cancels nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING

from cellwall.client.connection.attempts import events_of, follow
from cellwall.client.connection.transport import Ask, Json, Transport, segment
from cellwall.surface.sync.loop_thread import Ended
from cellwall.wire.reading import execution_of

if TYPE_CHECKING:
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.model.execution import Event, Execution
    from cellwall.surface.sync.loop_thread import LoopThread, Put

_WAIT_S = 50
"""Seconds of one request that waits for the end; the server holds none for longer than 60 s."""


class AsyncSubmitted:
    """One execution that does not depend on a connection."""

    def __init__(self, transport: Transport, execution_id: str) -> None:
        self._transport = transport
        checked = segment(execution_id, "execution", remedy="give the id that `submit` returned")
        self._place = f"/executions/{checked}"
        self.id = execution_id

    async def status(self) -> str:
        """Return `queued`, `running`, or the end: `success`, `error`, `timeout`."""
        return str((await self._transport.json(Ask("GET", self._place)))["status"])

    async def result(self, timeout: float | None = None) -> Execution:  # noqa: ASYNC109 - as in concurrent.futures
        """Return the execution once it has ended; `TimeoutError` after `timeout` seconds.

        Raises an error of the server: `Interrupted` if the server's end cut the execution short.
        """
        async with asyncio.timeout(timeout):
            while True:
                ask = Ask("GET", self._place, {"wait": _WAIT_S}, is_held=True)
                facts: Json = await self._transport.json(ask)
                if facts["verdict"] is not None:
                    return execution_of(facts)

    async def events(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield its events after number `after`, live, to the `end`."""
        async with contextlib.aclosing(
            follow(self._transport, lambda n: events_of(self._place, n), after=after)
        ) as events:
            async for event in events:
                yield event

    async def cancel(self) -> None:
        """End it, also before its turn; idempotent."""
        await self._transport.request(Ask("DELETE", self._place))


class Submitted:
    """The same for synchronous programs."""

    def __init__(self, thread: LoopThread[AsyncClient], remote: AsyncSubmitted) -> None:
        self._thread = thread
        self._remote = remote
        self.id = remote.id

    def status(self) -> str:
        """Return `queued`, `running`, or the end: `success`, `error`, `timeout`."""
        return self._thread.call(lambda _client, _put: self._remote.status())

    def result(self, timeout: float | None = None) -> Execution:
        """Return the execution once it has ended; `TimeoutError` after `timeout` seconds.

        Raises an error of the server: `Interrupted` if the server's end cut the execution short.
        """
        return self._thread.call(lambda _client, _put: self._remote.result(timeout))

    def events(self, after: int = 0) -> Generator[Event, None, None]:
        """Yield its events after number `after`, live, to the `end`."""

        async def work(put: Put) -> None:
            async with contextlib.aclosing(self._remote.events(after)) as events:
                async for event in events:
                    put(event)

        with contextlib.closing(self._thread.iterate(lambda _client, put: work(put))) as items:
            for item in items:
                if not isinstance(item, Ended):
                    yield item
                elif item.error is not None:
                    raise item.error

    def cancel(self) -> None:
        """End it, also before its turn; idempotent."""
        self._thread.call(lambda _client, _put: self._remote.cancel())
