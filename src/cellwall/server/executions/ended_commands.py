"""Commands that ended recently, and how long they can be asked about.

Running commands, and the record of a command, are in `sandboxes`. A command's arguments and output
are memory that a tenant fills at will. The invariants: one tenant's commands take at most half of
the memory there is for all; the newest of each tenant stays, however large, until its time is over.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.server.executions.sandboxes import CommandRecord, SandboxRecord

    Entry = tuple[SandboxRecord, CommandRecord, int]

_MOST_EACH = 256
"""Number of ended commands kept per sandbox."""


class EndedCommands:
    """All ended commands, by tenant, in the order in which they ended."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` is the memory that all ended commands together may take."""
        self._most = most_bytes
        self._each = most_bytes // 2
        self._by_tenant: dict[str, OrderedDict[str, Entry]] = {}
        self._bytes: dict[str, int] = {}

    @property
    def kept_bytes(self) -> int:
        """Approximate memory of all ended commands in bytes."""
        return sum(self._bytes.values())

    def add(self, owner: SandboxRecord, record: CommandRecord) -> None:
        """Keep an ended command, and forget the oldest ones beyond the limits."""
        tenant, cost = owner.owner, record.cost_bytes
        mine = self._by_tenant.setdefault(tenant, OrderedDict())
        mine[record.id] = (owner, record, cost)
        self._bytes[tenant] = self._bytes.get(tenant, 0) + cost
        ended = [each for each in owner.commands.values() if each.ended.done()]
        if len(ended) > _MOST_EACH:
            self.forget(min(ended, key=lambda each: each.ended_at or 0.0))
        while len(mine) > 1 and self._bytes[tenant] > self._each:
            self.forget(next(iter(mine.values()))[1])
        self._make_room()

    def _make_room(self) -> None:
        while self.kept_bytes > self._most:
            most = max(
                self._by_tenant, key=lambda it: (len(self._by_tenant[it]) > 1, self._bytes[it])
            )
            if len(self._by_tenant[most]) == 1:
                return
            self.forget(next(iter(self._by_tenant[most].values()))[1])

    def forget(self, record: CommandRecord) -> None:
        """Remove an ended command; a running one is left alone."""
        mine = self._by_tenant.get(record.owner, OrderedDict())
        if record.id not in mine:
            return
        owner, _, cost = mine.pop(record.id)
        owner.commands.pop(record.id, None)
        self._bytes[record.owner] -= cost
        if not mine:
            del self._by_tenant[record.owner], self._bytes[record.owner]

    def expire(self, limit: float) -> None:
        """Forget commands that ended before `limit`."""
        for mine in list(self._by_tenant.values()):
            for _, record, _ in list(mine.values()):
                if record.ended_at is not None and record.ended_at > limit:
                    break
                self.forget(record)
