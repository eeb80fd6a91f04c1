"""Names of snapshots: one of ours carries the sandbox that it is of, and the name by a client.

Clients list the snapshots of one sandbox, and name a snapshot as they name a template; both has to
outlive the server. The invariant: a name that cannot be kept whole is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.answers import refused
from cellwall.model.ids import new_id
from cellwall.server.core.times import rfc3339

if TYPE_CHECKING:
    from cellwall.client.asynchronous import AsyncClient
    from cellwall.model.snapshot import Snapshot

_KEPT = re.compile(r"e2b\.([a-z0-9]{20,40})\.([A-Za-z0-9._-]{1,32})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
_MOST_CHARACTERS = 63
"""Of a name of ours: the id of a sandbox that a node made leaves less to its client."""
_DEFAULT_TAG = ":default"
_UNNAMED = "-"
"""Beginning of the last part in the name of a snapshot that its client has not named."""


@dataclass(frozen=True, slots=True)
class Called:
    """A snapshot of ours as E2B's clients call it."""

    snapshot: Snapshot
    sandbox_id: str | None
    """Sandbox that it is of; None if another door made it."""
    name: str | None
    """Name that its client gave it."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Called:
        """Take the name of a snapshot apart."""
        kept = _KEPT.fullmatch(snapshot.name)
        if kept is None:
            return cls(snapshot, None, None if snapshot.name == snapshot.id else snapshot.name)
        return cls(snapshot, kept[1], None if kept[2].startswith(_UNNAMED) else kept[2])

    def is_called(self, name: str) -> bool:
        """Report whether a client may mean this one by `name`."""
        return name in {self.snapshot.id, self.name}

    def as_json(self) -> dict[str, object]:
        """Return the object that clients read; by `createdAt` a gateway puts lists in order."""
        names = [] if self.name is None else [self.name]
        return {
            "snapshotID": self.snapshot.id,
            "names": names,
            "createdAt": rfc3339(self.snapshot.created_at),
        }


def kept_name(sandbox_id: str, name: str | None) -> str:
    """Return our name of a new snapshot. Raises the 400 for one that cannot be kept."""
    if not name:
        return f"e2b.{sandbox_id}.{_UNNAMED}{new_id()[:20]}"
    plain, begin = plain_name(name), f"e2b.{sandbox_id}."
    most = min(31, _MOST_CHARACTERS - len(begin))
    if not _NAME.fullmatch(plain) or len(plain) > most:
        raise refused(
            "name", f"use 1 to {most} letters, digits, '.', '_' and '-', and no tag but 'default'"
        )
    return begin + plain


def plain_name(name: str) -> str:
    """Return a name without the tag that stands for none."""
    return name.removesuffix(_DEFAULT_TAG)


async def found(client: AsyncClient, name: str) -> Snapshot | None:
    """Return the caller's snapshot that a client calls so: the newest; None if there is none."""
    plain = plain_name(name)
    called = [Called.of(each) for each in await client.snapshots.list()]
    mine = [each.snapshot for each in called if each.is_called(plain)]
    return max(mine, key=lambda each: each.created_at, default=None)
