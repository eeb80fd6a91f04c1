"""The numbered events of one execution or command, kept in bounded memory for any reader.

The engine appends; any number of readers follow from any number on. The transport is `streams`. The
invariant: the numbers have no holes; a reader gets every event once and in order, or a record that
says which ones are gone. Events are dropped only while no attached reader still needs them; a
reader that is far behind makes the source wait instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.model.execution import Event
from cellwall.server.streaming.event_line import Line, gap, unknown_gap, with_gaps
from cellwall.wire.answer import event_line, one_line

if TYPE_CHECKING:
    from cellwall.server.streaming.overflow import Overflow

HIGH_BYTES = 256 * 1024
"""Bytes that a reader may be behind before the source is paused."""
_HARD_BYTES = 32 * 1024 * 1024
"""Bytes kept at most even for a reader that needs them; the source is paused long before."""
_BATCH_BYTES = 256 * 1024
_EVENT_BYTES = 256
"""Bytes an event costs besides its text."""


@dataclass(frozen=True, slots=True)
class _Item:
    seq: int
    end: int
    """Bytes of all events up to and including this one."""
    size: int
    content: Event | Line | Mapping[str, Any]

    def line(self) -> Line:
        content = self.content
        if isinstance(content, Line):
            return content
        value = event_line(content) if isinstance(content, Event) else {"seq": self.seq, **content}
        return Line(self.seq, str(value["type"]), one_line(value))


class Spool:
    """Events of one execution or command; see the module. Lives on one event loop."""

    def __init__(self, cap_bytes: int) -> None:
        """Keep up to `cap_bytes` while no reader needs more."""
        self._cap_bytes = cap_bytes
        self._items: deque[_Item] = deque()
        self._total = 0
        self._dropped = 0
        self._readers: set[Reader] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self.last = 0
        """Number of the latest event."""
        self._begins_after = 0
        self._before: Mapping[str, Any] = {}
        """Facts about the events up to number `_begins_after`, which an earlier server had."""
        self.is_closed = False
        self._is_left = False
        self.on_pressure: Callable[[bool], None] | None = None
        """Called with True when the source should wait, with False when it may go on."""
        self.overflow: Overflow | None = None
        """Takes events that memory no longer keeps; None: they are dropped."""

    @property
    def kept_bytes(self) -> int:
        """Number of bytes the kept events cost now."""
        return self._total - self._dropped

    @property
    def first(self) -> int:
        """Number of the oldest kept event; `last + 1` if there is none."""
        return self._items[0].seq if self._items else self.last + 1

    def go_on_after(self, number: int, facts: Mapping[str, Any]) -> None:
        """Begin after `number`: an earlier server has numbered events up to that, at most.

        `facts` go into the record that says that those are gone.
        """
        self.last = self._begins_after = number
        self._before = facts

    def gap(self, after: int) -> Line:
        """Return the record that says that the events from `after` to the first kept are gone."""
        if after >= self._begins_after:
            return gap(after, self.first)
        return unknown_gap(after, self.first, self._before)

    def append(self, event: Event) -> None:
        """Take the next event of the engine, whose numbers have no holes either."""
        if self._is_left:
            return
        if event.kind == "value":
            # Kept as text: as objects it may take 24 times as much, uncounted.
            line = Line(event.seq, event.kind, one_line(event_line(event)))
            self._put(event.seq, _EVENT_BYTES + len(line.text), line)
        else:
            self._put(event.seq, _size_of(event), event)
        if event.kind == "end":
            self._close()

    def finish(self, content: Mapping[str, Any]) -> None:
        """End the spool with a line of the server's, if the engine gave none."""
        if not self.is_closed:
            self._put(self.last + 1, _EVENT_BYTES, content)
            self._close()

    def leave(self) -> None:
        """Have readers stop without an `end`: the work goes on in the next server."""
        self._is_left = True
        self._close()

    def _put(self, seq: int, size: int, content: Event | Line | Mapping[str, Any]) -> None:
        self.last = seq
        self._total += size
        self._items.append(_Item(seq, self._total, size, content))
        self._trim()
        self._press()
        self._wake()

    def _close(self) -> None:
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _trim(self) -> None:
        needed = min((reader.position for reader in self._readers), default=self.last)
        while len(self._items) > 1 and self.kept_bytes > self._cap_bytes:
            oldest = self._items[0]
            if oldest.seq > needed and self.kept_bytes <= _HARD_BYTES:
                return
            self._dropped += oldest.size
            self._items.popleft()
            if self.overflow is not None:
                self.overflow.take(oldest.line())

    def _press(self) -> None:
        if self.on_pressure is None:
            return
        behind = max((self._total - reader.offset for reader in self._readers), default=0)
        if behind > HIGH_BYTES:
            self.on_pressure(True)
        elif behind < HIGH_BYTES // 2:
            self.on_pressure(False)

    def lines(self) -> list[Line]:
        """Return all lines that memory keeps."""
        return [item.line() for item in self._items]

    def reader(self, after: int = 0) -> Reader:
        """Return a reader that continues at `after + 1`; it must be closed."""
        return Reader(self, after)

    def _attach(self, reader: Reader) -> None:
        self._readers.add(reader)

    def _detach(self, reader: Reader) -> None:
        self._readers.discard(reader)
        self._trim()
        self._press()

    def _after(self, position: int) -> list[_Item]:
        """Return the events after `position`, as many as one batch takes."""
        found: list[_Item] = []
        size = 0
        start = max(0, position + 1 - self.first)
        for index in range(start, len(self._items)):
            item = self._items[index]
            found.append(item)
            size += item.size
            if size >= _BATCH_BYTES:
                break
        return found

    def arrival(self) -> asyncio.Future[None]:
        """Return a future that is done at the next event."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future


class Reader:
    """One reader's place in a spool."""

    def __init__(self, spool: Spool, after: int) -> None:
        self._spool = spool
        self.position = min(after, spool.last)
        self.offset = 0
        self._settle_offset()
        spool._attach(self)

    def _settle_offset(self) -> None:
        items = self._spool._after(self.position)
        self.offset = items[0].end - items[0].size if items else self._spool._total

    @property
    def is_over(self) -> bool:
        """Whether no further event will come."""
        return self._spool.is_closed and self.position >= self._spool.last

    async def overflowed(self) -> list[Line]:
        """Return lines that the store has but memory no longer; move the reader on."""
        spool = self._spool
        if spool.overflow is None or self.position + 1 >= spool.first:
            return []
        found = await spool.overflow.after(self.position)
        lines = [line for line in found if line.seq is not None and line.seq < spool.first]
        if not lines:
            return []
        before, self.position = self.position, lines[-1].seq or self.position
        return with_gaps(lines, before)

    def take(self) -> list[Line]:
        """Return the lines in memory, oldest first, and move the reader on."""
        spool = self._spool
        lines: list[Line] = []
        if self.position + 1 < spool.first:
            lines.append(spool.gap(self.position))
            self.position = spool.first - 1
        items = spool._after(self.position)
        if items:
            self.position, self.offset = items[-1].seq, items[-1].end
        lines += [item.line() for item in items]
        return lines

    def passed(self) -> None:
        """Report that the taken lines were sent: the source may go on."""
        self._spool._trim()
        self._spool._press()

    def arrival(self) -> asyncio.Future[None]:
        """Return a future that is done when there is more, or when no more will come."""
        return self._spool.arrival()

    def close(self) -> None:
        """Detach the reader."""
        self._spool._detach(self)


def _size_of(event: Event) -> int:
    size = _EVENT_BYTES
    if event.text is not None:
        size += len(event.text)
    if event.data is not None:
        size += sum(len(k) + (len(v) if isinstance(v, str) else 64) for k, v in event.data.items())
    if event.error is not None:
        size += event.error.size_chars
    return size
