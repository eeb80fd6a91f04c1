"""Keys of callers: their digests, of which every gateway reads those that have changed.

What is left of a key's life is told by the clock of the directory's server alone: a gateway whose
clock is wrong ends no key early or late. The invariants: each change is counted in the transaction
that makes it; a key that is revoked stays so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.cluster.directory.group_commit import Statement
from cellwall.store.records.rows import KeyRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.cluster.directory.group_commit import GroupCommit

_STEP = "keys"
_CHANGE = "UPDATE directory.changes SET number = number + 1 WHERE what = 'keys'"
"""Holds the row until the commit, so changes are known in the order of their numbers."""
_PUT = Statement(
    12,
    _STEP,
    f"""
WITH next AS ({_CHANGE} RETURNING number),
made AS (
  INSERT INTO directory.keys (id, digest, tenant, scope, name, made_at, expires_at, change)
  SELECT $2, $3, $1, $4, $5, clock_timestamp(),
         clock_timestamp() + make_interval(secs => $6), number FROM next
  RETURNING made_at, expires_at)
SELECT extract(epoch FROM made_at)::float8, extract(epoch FROM expires_at)::float8 FROM made
""",  # noqa: S608 - of constants
)
_REVOKE = Statement(
    13,
    _STEP,
    f"""
WITH next AS (
  {_CHANGE} AND EXISTS (SELECT FROM directory.keys WHERE id = $1 AND revoked_at IS NULL)
  RETURNING number),
gone AS (
  UPDATE directory.keys SET revoked_at = clock_timestamp(), change = number FROM next
  WHERE id = $1 AND $2 = '' AND revoked_at IS NULL RETURNING true)
SELECT EXISTS (SELECT FROM directory.keys WHERE id = $1), EXISTS (SELECT FROM gone)
""",  # noqa: S608 - of constants
)
_VERSION = Statement(14, _STEP, "SELECT number FROM directory.changes WHERE what = $1 AND $2 = ''")
_COLUMNS = """
       coalesce(array_agg(digest), '{}'), coalesce(array_agg(tenant), '{}'),
       coalesce(array_agg(scope), '{}'), coalesce(array_agg(name), '{}'),
       coalesce(array_agg(extract(epoch FROM made_at)::float8), '{}'),
       coalesce(array_agg(extract(epoch FROM expires_at)::float8), '{}'),
       coalesce(array_agg(extract(epoch FROM revoked_at)::float8), '{}'),
       coalesce(array_agg(extract(epoch FROM expires_at - clock_timestamp())::float8), '{}')
"""
_NUMBER = "(SELECT number FROM directory.changes WHERE what = $1 AND $2 = '')"
_LATEST = f"(SELECT max(id) FROM directory.keys WHERE change = {_NUMBER})"  # noqa: S608 - of constants
_ALL = Statement(
    15,
    _STEP,
    f"""
SELECT {_NUMBER}, {_LATEST}, {_COLUMNS}
FROM (SELECT * FROM directory.keys ORDER BY made_at, id) AS keys
""",  # noqa: S608 - of constants
)
_SINCE = Statement(
    16,
    _STEP,
    f"""
SELECT {_NUMBER}, {_LATEST},
       EXISTS (SELECT FROM directory.keys WHERE id = $4 AND change >= $3)
       AND NOT EXISTS (SELECT FROM directory.keys WHERE id <> $4 AND change = $3), {_COLUMNS}
FROM (SELECT * FROM directory.keys WHERE change > $3 ORDER BY change) AS keys
""",  # noqa: S608 - of constants
)


class Version(NamedTuple):
    """Which changes of the keys are known."""

    number: int
    latest: str | None = None
    """Id of the key that the latest change was of; None: it was removed since, or there is none.
    Where that change is another one's, the directory is another."""


@dataclass(frozen=True, slots=True)
class Kept(KeyRow):
    """One key as the directory keeps it; times are by its clock."""

    left_s: float | None = None
    """Seconds until it expires, from now on."""


class Keys:
    """The keys, as one gateway reads and changes them. All raise StoreBusy."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits

    async def put(
        self,
        key_id: str,
        digest: str,
        tenant: str,
        scope: str,
        name: str | None,
        life_s: float | None,
    ) -> Kept:
        """Keep a new key; `life_s` in seconds, None: until it is revoked."""
        row = await self._commits.do(_PUT, tenant, key_id, digest, scope, name, life_s)
        return Kept(digest, tenant, scope, name, *row)

    async def revoke(self, key_id: str) -> tuple[bool, bool]:
        """Revoke the key of that id; report whether there is one, and whether it was not before."""
        is_there, is_new = await self._commits.do(_REVOKE, key_id, "")
        return bool(is_there), bool(is_new)

    async def version(self) -> int:
        """Return a number that grows with each change."""
        return int((await self._commits.do(_VERSION, "keys", ""))[0])

    async def all(self) -> tuple[Version, list[Kept]]:
        """Return all keys, oldest first, also revoked ones, and the version that they are of."""
        number, latest, *columns = await self._commits.do(_ALL, "keys", "")
        return Version(int(number), latest), _kept(columns)

    async def since(self, known: Version) -> tuple[Version, list[Kept]] | None:
        """Return the keys that were changed after a version, and the version now.

        None: that version is not of this directory, as of one that was restored, or cannot be told.
        """
        row = await self._commits.do(_SINCE, "keys", "", known.number, known.latest)
        number, latest, is_same, *columns = row
        if number < known.number or not is_same:
            return None
        return Version(int(number), latest), _kept(columns)


def _kept(columns: Sequence[Sequence[Any]]) -> list[Kept]:
    return [Kept(*each) for each in zip(*columns, strict=True)]
