"""Refusals, summed up: the first of a kind at once, the others as a number each minute.

A refused client must not be able to make the server write as fast as it can answer. Records are
written by `writer`. The invariant: memory is bounded, and each refusal is in exactly one record.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from cellwall.server.audit.chain import Entry, compact

WINDOW_S = 60.0
_MOST_KINDS = 1024
_Kind = tuple[str, str, str]


class Refusals:
    """The refusals of one server."""

    def __init__(self, note: Callable[[Entry], None]) -> None:
        """`note` takes entries to be written."""
        self._note = note
        self._counts: dict[_Kind, tuple[Entry, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: Entry) -> None:
        """Take a refusal."""
        kind = (entry.tenant, entry.actor, entry.result)
        if kind not in self._counts and len(self._counts) >= _MOST_KINDS:
            kind, entry = ("", "others", entry.result), entry._replace(actor="others", object="")
        first, count = self._counts.get(kind, (entry, 0))
        if not count:
            self._note(entry)
        self._counts[kind] = (first, count + 1)

    def open(self) -> None:
        """Start the timer of the sums."""
        self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._on_timer)

    def _on_timer(self) -> None:
        self.sum_up()
        self.open()

    def sum_up(self) -> None:
        """Note the number of each kind beyond the first, and begin anew."""
        counts, self._counts = self._counts, {}
        for first, count in counts.values():
            if count > 1:
                facts = json.loads(first.details or "{}")
                facts |= {"more": count - 1, "window_s": WINDOW_S}
                self._note(
                    first._replace(
                        time=time.time(),
                        mono_ns=time.monotonic_ns(),
                        object="",
                        details=compact(facts),
                    )
                )

    def close(self) -> None:
        """Sum up for the last time."""
        if self._timer is not None:
            self._timer.cancel()
        self.sum_up()
