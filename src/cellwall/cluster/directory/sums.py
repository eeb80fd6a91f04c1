"""Sums: how many sandboxes a tenant has on all nodes together, against its quota.

A sandbox has a row from before a node is asked for it until it has ended. The invariant: a tenant's
sum is the number of its rows, and no row is made that would bring the sum above the quota.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.directory.group_commit import Statement
from cellwall.store.records.errors import StoreConflict

if TYPE_CHECKING:
    from cellwall.cluster.directory.group_commit import GroupCommit

_STEP = "quota sandboxes"
_RESERVE = Statement(
    4,
    _STEP,
    """
WITH known AS (SELECT FROM directory.sandboxes WHERE id = $2),
sum AS (
  INSERT INTO directory.tenants AS t (tenant, sandboxes)
  SELECT $1, 1 WHERE NOT EXISTS (SELECT FROM known)
  ON CONFLICT (tenant) DO UPDATE SET sandboxes = t.sandboxes + 1 WHERE t.sandboxes < $4
  RETURNING true),
made AS (
  INSERT INTO directory.sandboxes (id, tenant, node, made_at)
  SELECT $2, $1, $3, clock_timestamp() FROM sum RETURNING true)
SELECT EXISTS (SELECT FROM made) OR EXISTS (SELECT FROM known)
""",
)
_ADOPT = Statement(
    5,
    _STEP,
    """
WITH made AS (
  INSERT INTO directory.sandboxes (id, tenant, node, made_at)
  VALUES ($2, $1, $3, clock_timestamp()) ON CONFLICT (id) DO NOTHING RETURNING true),
sum AS (
  INSERT INTO directory.tenants AS t (tenant, sandboxes) SELECT $1, 1 FROM made
  ON CONFLICT (tenant) DO UPDATE SET sandboxes = t.sandboxes + 1 RETURNING true)
SELECT EXISTS (SELECT FROM sum)
""",
)
_GIVE_BACK = Statement(
    6,
    _STEP,
    """
WITH gone AS (
  DELETE FROM directory.sandboxes WHERE tenant = $1 AND id = $2 RETURNING true),
sum AS (
  UPDATE directory.tenants SET sandboxes = sandboxes - 1
  WHERE tenant = $1 AND EXISTS (SELECT FROM gone) RETURNING true)
SELECT EXISTS (SELECT FROM sum)
""",
)
_OF_TENANT = Statement(
    7,
    _STEP,
    """
SELECT coalesce(array_agg(id), '{}'), coalesce(array_agg(node), '{}'),
       coalesce(array_agg(extract(epoch FROM clock_timestamp() - made_at)::float8), '{}')
FROM directory.sandboxes WHERE tenant = $1 AND $2 = ''
""",
)


class Row(NamedTuple):
    """One sandbox that is counted."""

    id: str
    node: str
    """Name of its node; empty: it is a place for a copy whose id is not known yet."""
    age_s: float
    """Seconds for which it is counted."""


class Sums:
    """The sums, as one gateway changes them."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits

    async def reserve(self, tenant: str, sandbox_id: str, node: str, most: int) -> bool:
        """Count a sandbox that a node is about to be asked for; False: the quota is used up.

        One that is counted stays so. Raises StoreBusy while the directory is away.
        """
        try:
            row = await self._commits.do(_RESERVE, tenant, sandbox_id, node, most)
        except StoreConflict:  # at another gateway in this moment
            return True
        return bool(row[0])

    async def adopt(self, tenant: str, sandbox_id: str, node: str) -> None:
        """Count a sandbox that there is, whatever the quota."""
        await self._commits.do(_ADOPT, tenant, sandbox_id, node)

    async def give_back(self, tenant: str, sandbox_id: str) -> None:
        """Count a sandbox of a tenant no longer; one that is not counted is left."""
        await self._commits.do(_GIVE_BACK, tenant, sandbox_id)

    async def of(self, tenant: str) -> list[Row]:
        """Return what is counted for a tenant."""
        row = await self._commits.do(_OF_TENANT, tenant, "")
        return [Row(*each) for each in zip(*row, strict=True)]
