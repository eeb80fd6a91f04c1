"""A bounded queue with a thread behind it; only that thread waits for a slow sink.

The form of a record is in `logs`. The invariants: `put` never blocks; records that the queue or the
sink did not take are counted, and the count is written as soon as the sink takes something again.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

Record = dict[str, Any]
_BATCH = 256
_RETRY_S = 0.5


class Sink:
    """Writes records to a descriptor, in order."""

    def __init__(
        self,
        fd: int,
        render: Callable[[Record], str],
        is_wanted: Callable[[Record], bool] = lambda _: True,
        most: int = 10_000,
    ) -> None:
        """Keep at most `most` unwritten records; `render` runs in the thread."""
        self._fd = fd
        self._render = render
        self._is_wanted = is_wanted
        self._most = most
        self._queue: SimpleQueue[Record | None] = SimpleQueue()
        self.dropped = 0
        """Number of records that were dropped instead of written."""
        self._said = 0
        self._lock = threading.Lock()  # guards `dropped`, which several threads count
        self._thread = threading.Thread(target=self._work, name="cellwall-log", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of records that are not yet written."""
        return self._queue.qsize()

    def put(self, record: Record) -> None:
        """Take a record, or count it as dropped; never blocks."""
        if not self._is_wanted(record):
            return
        if self._queue.qsize() >= self._most:
            self._drop(1)
        else:
            self._queue.put(record)

    def close(self, wait_s: float) -> None:
        """Write the remaining records, for at most `wait_s` seconds."""
        self._queue.put(None)
        self._thread.join(wait_s)

    def _drop(self, count: int) -> None:
        with self._lock:
            self.dropped += count

    # -- in the thread ---------------------------------------------------------------------

    def _work(self) -> None:
        is_open = True
        while is_open:
            batch = [self._queue.get()]
            with contextlib.suppress(Empty):
                while len(batch) < _BATCH:
                    batch.append(self._queue.get_nowait())
            is_open = None not in batch
            lines = [self._line(record) for record in batch if record is not None]
            if lines and not self._write_all("".join(lines).encode("utf-8", "backslashreplace")):
                self._drop(len(lines))
            elif self.dropped > self._said:
                self._say()

    def _say(self) -> None:
        total = self.dropped
        record = {
            "event": "log records dropped",
            "level": "error",
            "time": time.time(),
            "count": total - self._said,
            "total": total,
        }
        if self._write_all(self._line(record).encode()):
            self._said = total

    def _line(self, record: Record) -> str:
        try:
            return self._render(record) + "\n"
        except Exception as error:  # noqa: BLE001 - one bad record must not end the log
            kind = type(error).__name__
            return f'{{"level":"error","event":"a record cannot be written: {kind}"}}\n'

    def _write_all(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                # Another process that shares the descriptor made it non-blocking.
                select.select([], [self._fd], [], _RETRY_S)
            except OSError:
                return False
        return True
