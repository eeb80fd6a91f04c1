"""Keys of callers: their digests, which every gateway reads again once they have changed.

What is left of a key's life is told by the clock of the directory's server alone: a gateway whose
clock is wrong ends no key early or late. The invariants: each change is counted in the transaction
that makes it; a key that is revoked stays so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.cluster.directory.group_commit import Statement
from cellwall.store.records.rows import KeyRow

if TYPE_CHECKING:
    from cellwall.cluster.directory.group_commit import GroupCommit

_STEP = "keys"
_CHANGE = "UPDATE directory.changes SET number = number + 1 WHERE what = 'keys'"
_PUT = Statement(
    12,
    _STEP,
    f"""
WITH made AS (
  INSERT INTO directory.keys (id, digest, tenant, scope, name, made_at, expires_at)
  VALUES ($2, $3, $1, $4, $5, clock_timestamp(), clock_timestamp() + make_interval(secs => $6))
  RETURNING made_at, expires_at),
change AS ({_CHANGE} AND EXISTS (SELECT FROM made) RETURNING true)
SELECT extract(epoch FROM made_at)::float8, extract(epoch FROM expires_at)::float8 FROM made
""",  # noqa: S608 - of constants
)
_REVOKE = Statement(
    13,
    _STEP,
    f"""
WITH gone AS (
  UPDATE directory.keys SET revoked_at = clock_timestamp()
  WHERE id = $1 AND $2 = '' AND revoked_at IS NULL RETURNING true),
change AS ({_CHANGE} AND EXISTS (SELECT FROM gone) RETURNING true)
SELECT EXISTS (SELECT FROM directory.keys WHERE id = $1), EXISTS (SELECT FROM change)
""",  # noqa: S608 - of constants
)
_VERSION = Statement(14, _STEP, "SELECT number FROM directory.changes WHERE what = $1 AND $2 = ''")
_ALL = Statement(
    15,
    _STEP,
    """
SELECT (SELECT number FROM directory.changes WHERE what = $1 AND $2 = ''),
       coalesce(array_agg(digest), '{}'), coalesce(array_agg(tenant), '{}'),
       coalesce(array_agg(scope), '{}'), coalesce(array_agg(name), '{}'),
       coalesce(array_agg(extract(epoch FROM made_at)::float8), '{}'),
       coalesce(array_agg(extract(epoch FROM expires_at)::float8), '{}'),
       coalesce(array_agg(extract(epoch FROM revoked_at)::float8), '{}'),
       coalesce(array_agg(extract(epoch FROM expires_at - clock_timestamp())::float8), '{}')
FROM (SELECT * FROM directory.keys ORDER BY made_at, id) AS keys
""",
)


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

    async def all(self) -> tuple[int, list[Kept]]:
        """Return all keys, oldest first, also revoked ones, and the version that they are of."""
        version, *columns = await self._commits.do(_ALL, "keys", "")
        return int(version), [Kept(*each) for each in zip(*columns, strict=True)]
