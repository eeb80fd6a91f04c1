"""The changes that the journal has and the database does not have yet.

The file is `file`, its records are made by `codec`, and `writer` decides when they go into the
database. The invariants: a taken change is durable and is passed on in the order of taking; no
change is taken that the rows in the database could refuse, because its caller would have its answer
already.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cellwall.store.journal.codec import encoded
from cellwall.store.journal.file import Extent, Journal
from cellwall.store.records.changes import Accept, Change, Ended, PutFact

APPLIED = "journal_applied"
"""Name of the fact that holds the last record whose changes the database has."""
_MOST_CHANGES = 4096
_MUCH = 256
"""Number of pending changes at which their transaction no longer waits for a pause in writing; each
is some KiB of memory."""
_log = logging.getLogger("cellwall.store")


class PendingWrites:
    """The journal's pending changes; see the module. Belongs to one `Writer`."""

    def __init__(self, journal: Journal, applied: int) -> None:
        """The database has everything up to record `applied`."""
        self._journal = journal
        self._applied = applied
        self._last = applied
        self._going = applied
        self._pending: list[Change] = []
        self._under_way: list[Change] = []
        self._running: dict[str, bool] = {}
        """Executions whose acceptance the journal took and whose end is not written; the value is
        whether the execution has a sandbox of its own."""
        self._is_held = False
        """Whether the last write to the database failed; nothing is taken until one succeeds."""
        self._is_broken = False

    @property
    def is_due(self) -> bool:
        """Whether the database lacks a change."""
        return self._last != self._applied

    @property
    def is_much(self) -> bool:
        """Whether so many changes wait that they belong into the database now."""
        return len(self._pending) >= _MUCH

    @property
    def running(self) -> int:
        """Number of running executions whose acceptance the journal took."""
        return len(self._running)

    @property
    def programs(self) -> int:
        """Number of those that have a sandbox of their own."""
        return sum(self._running.values())

    @property
    def is_broken(self) -> bool:
        """Whether the journal has failed; it then takes nothing any more."""
        return self._is_broken

    def take(self, changes: Sequence[Change]) -> bool:
        """Make `changes` durable; False if the database has to do that."""
        may_take = self._may_take(changes)
        self._forget_ended(changes)
        content = encoded(changes) if may_take else None
        try:
            if content is None or not self._journal.append(self._last + 1, content):
                return False
        except OSError as error:
            self.fail(error)
            return False
        self._note(changes)
        return True

    def reserve(self, changes: Sequence[Change], content: bytes) -> Extent | None:
        """Reserve room for `changes`; None if the database has to write them.

        `content` is `encoded(changes)`. Then call `write`, on any thread, and after it `keep` or,
        with its `OSError`, `fail`. Nothing else may be taken before that.
        """
        may_take = self._may_take(changes)
        self._forget_ended(changes)
        return self._journal.reserve(self._last + 1, content) if may_take else None

    def write(self, extent: Extent) -> None:
        """Write a record to its extent; raises `OSError`."""
        self._journal.write(extent)

    def keep(self, changes: Sequence[Change], extent: Extent) -> None:
        """Note that `changes` are durable."""
        self._journal.keep(extent)
        self._note(changes)

    def fail(self, error: Exception) -> None:
        """Give up the journal; its further writes go to the database."""
        _log.error(
            "journal: %s; until the next start every write goes to the database, which takes "
            "longer; look after its disk",
            error,
        )
        # The record may be on disk: its number counts as used, and its changes as applied with the
        # next transaction, which is the one that its caller is sent to now.
        self._is_broken = True
        self._last += 1

    def _may_take(self, changes: Sequence[Change]) -> bool:
        ends = [each.id for each in changes if isinstance(each, Ended)]
        is_open = not self._is_held and not self._is_broken
        is_known = all(each in self._running for each in ends) and len(set(ends)) == len(ends)
        return is_open and is_known and len(self._pending) < _MOST_CHANGES

    def _forget_ended(self, changes: Sequence[Change]) -> None:
        """Forget executions that end with `changes`, also if the database writes them."""
        for each in changes:
            if isinstance(each, Ended):
                self._running.pop(each.id, None)

    def _note(self, changes: Sequence[Change]) -> None:
        self._last += 1
        self._pending += changes
        for each in changes:
            if isinstance(each, Accept):
                self._running[each.row.id] = each.row.sandbox_id is None

    def begin(self) -> Sequence[Change]:
        """Return the changes that the next transaction has to begin with; `end` must follow."""
        if not self.is_due:
            return ()
        self._under_way, self._pending = self._pending, []
        self._going = self._last
        return [*self._under_way, PutFact(APPLIED, str(self._going))]

    def end(self, *, is_applied: bool) -> None:
        """Note whether the database has now the changes that `begin` returned."""
        self._is_held = not is_applied
        if is_applied:
            self._applied = self._going
            self._journal.release(self._going)
        else:
            self._pending = self._under_way + self._pending
        self._under_way = []

    def commit_took(self, seconds: float) -> None:
        """Pass on the seconds of a database transaction: the journal lies on the same disk."""
        self._journal.commit_took(seconds)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
