"""The oldest events of a running execution, written to the store when memory is full.

Called by the spool (`spool`), which hands events over; `ledger` writes the end. The invariants: an
event that a spool gave away is readable here at every moment, from memory or from the store, until
the bound is reached; above it events are dropped, and readers get a gap record.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from cellwall.model.errors import CellwallError
from cellwall.server.streaming.event_line import Line
from cellwall.store.records.changes import AppendEvents
from cellwall.store.records.rows import EventChunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cellwall.store.store import Store
    from cellwall.surface.shared.tasks import Tasks

_CHUNK_BYTES = 256 * 1024
"""Bytes of events that are written at once."""
AT_ONCE = 4
"""Number of chunks that a reader has in memory at once."""
_WAITING_BYTES = 4 * 1024 * 1024
"""Bytes of events held at most while the store is slow."""


class Overflow:
    """Events of one execution on their way to the store; see the module."""

    def __init__(self, execution_id: str, store: Store, tasks: Tasks, most_bytes: int) -> None:
        """At most `most_bytes` are written in all."""
        self._id = execution_id
        self._store = store
        self._tasks = tasks
        self._room = most_bytes
        self.written_bytes = 0
        """Number of bytes of events that the store has."""
        self._waiting: list[Line] = []
        self._waiting_bytes = 0
        self._writing: list[Line] = []
        self._task: asyncio.Task[None] | None = None

    def take(self, line: Line) -> None:
        """Take the next event that the spool gives away."""
        size = len(line.text) + 1
        if size > self._room or self._waiting_bytes > _WAITING_BYTES:
            self._room = 0  # from here on there is a gap, and only one
            return
        self._room -= size
        self._waiting.append(line)
        self._waiting_bytes += size
        if self._waiting_bytes >= _CHUNK_BYTES and self._task is None:
            self._task = self._tasks.spawn(self._write())

    async def _write(self) -> None:
        while self._waiting_bytes >= _CHUNK_BYTES:
            self._writing, self._waiting, self._waiting_bytes = self._waiting, [], 0
            try:
                chunk = chunk_of(self._id, self._writing)
                await self._store.write(AppendEvents(chunk))
                self.written_bytes += len(chunk.lines)
            except CellwallError:
                self._room = 0
            self._writing = []
        self._task = None

    async def rest(self) -> list[Line]:
        """Return the events taken and not written, once no write is running."""
        while self._task is not None:
            await asyncio.wait((self._task,))
        return self._waiting

    async def after(self, position: int) -> list[Line]:
        """Return the next available lines after number `position`, in order.

        The last lines may be those that the spool still has, too.
        """
        # Copy the lines in memory first: they may be in the store alone once the store has
        # answered.
        held = [*self._writing, *self._waiting]
        chunks = await self._store.events(self._id, position, AT_ONCE)
        found = lines_of(chunks, position)
        if len(chunks) == AT_ONCE:
            return found
        last = found[-1].seq or position if found else position
        found += [line for line in held if line.seq is not None and line.seq > last]
        return found


def chunk_of(execution_id: str, lines: Sequence[Line]) -> EventChunk:
    """Return numbered lines without holes as the store takes them."""
    text = "".join(line.text + "\n" for line in lines)
    return EventChunk(execution_id, lines[0].seq or 0, lines[-1].seq or 0, text.encode())


def lines_of(chunks: Iterable[EventChunk], after: int) -> list[Line]:
    """Return the lines of `chunks` that have higher numbers than `after`."""
    found: list[Line] = []
    for chunk in chunks:
        for text in chunk.lines.decode().splitlines():
            value = json.loads(text)
            if value["seq"] > after:
                found.append(Line(value["seq"], value["type"], text))
    return found
