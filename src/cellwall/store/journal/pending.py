"""What the journal has and the database does not have yet.

Not the file (`file`), not its records (`codec`), not when it goes into the database
(`writer`). The invariants: what was taken is durable and is handed on in the order in which it
was taken; nothing is taken that the rows in the database could refuse, because nobody would be
there any more to be told.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cellwall.store.journal.codec import encoded
from cellwall.store.journal.file import Journal, Place
from cellwall.store.records.changes import Accept, Change, Ended, PutFact

APPLIED = "journal_applied"
"""The fact that says up to which record the database has everything."""
_MOST_CHANGES = 4096
_MUCH = 256
"""Changes that need not wait for a rest any more: each is some KiB of memory."""
_log = logging.getLogger("cellwall.store")


class Ahead:
    """See the module. Belongs to one `Writer`."""

    def __init__(self, journal: Journal, applied: int) -> None:
        """The database has everything up to record `applied`."""
        self._journal = journal
        self._applied = applied
        self._last = applied
        self._going = applied
        self._pending: list[Change] = []
        self._under_way: list[Change] = []
        self._running: dict[str, bool] = {}
        """Executions whose acceptance it took and whose end nobody has written; whether each has a
        sandbox of its own."""
        self._is_held = False
        """The database could not be written: nothing more is promised before it can."""
        self._is_broken = False

    @property
    def is_due(self) -> bool:
        """Whether the database lacks something."""
        return self._last != self._applied

    @property
    def is_much(self) -> bool:
        """Whether what the database lacks is better there than here."""
        return len(self._pending) >= _MUCH

    @property
    def running(self) -> int:
        """How many executions run whose acceptance it took."""
        return len(self._running)

    @property
    def programs(self) -> int:
        """How many of those have a sandbox of their own."""
        return sum(self._running.values())

    @property
    def is_broken(self) -> bool:
        """Whether it failed; it takes nothing any more."""
        return self._is_broken

    def take(self, changes: Sequence[Change]) -> bool:
        """Make `changes` durable; False if that is for the database to do."""
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

    def place(self, changes: Sequence[Change], content: bytes) -> Place | None:
        """Begin to do as `take` does; None if that is for the database to do.

        `content` is `encoded(changes)`. Then `write`, on any thread; when that is over `keep` or,
        with its `OSError`, `fail`. Until then nothing else may be taken.
        """
        may_take = self._may_take(changes)
        self._forget_ended(changes)
        return self._journal.place(self._last + 1, content) if may_take else None

    def write(self, place: Place) -> None:
        """Write what has a place; raises `OSError`."""
        self._journal.write(place)

    def keep(self, changes: Sequence[Change], place: Place) -> None:
        """Note that `changes` are durable."""
        self._journal.keep(place)
        self._note(changes)

    def fail(self, error: Exception) -> None:
        """Give the journal up; what was to go there goes to the database."""
        _log.error(
            "journal: %s; until the next start every write goes to the database, which takes "
            "longer; look after its disk",
            error,
        )
        # The record may be there: its number counts as used, and what is in it as applied
        # with the next transaction, which is the one that its caller is sent to now.
        self._is_broken = True
        self._last += 1

    def _may_take(self, changes: Sequence[Change]) -> bool:
        ends = [each.id for each in changes if isinstance(each, Ended)]
        is_open = not self._is_held and not self._is_broken
        is_known = all(each in self._running for each in ends) and len(set(ends)) == len(ends)
        return is_open and is_known and len(self._pending) < _MOST_CHANGES

    def _forget_ended(self, changes: Sequence[Change]) -> None:
        """They end now, wherever that is written."""
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
        """Return what the next transaction has to begin with; `end` must follow."""
        if not self.is_due:
            return ()
        self._under_way, self._pending = self._pending, []
        self._going = self._last
        return [*self._under_way, PutFact(APPLIED, str(self._going))]

    def end(self, *, is_applied: bool) -> None:
        """Tell whether the database has now what `begin` returned."""
        self._is_held = not is_applied
        if is_applied:
            self._applied = self._going
            self._journal.release(self._going)
        else:
            self._pending = self._under_way + self._pending
        self._under_way = []

    def commit_took(self, seconds: float) -> None:
        """Tell how long the database had for a transaction: the journal lies on the same disk."""
        self._journal.commit_took(seconds)

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()
