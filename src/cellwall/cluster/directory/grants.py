"""Grants: how much memory, CPUs and files of a tenant's quotas each node may hold.

A gateway reads what all nodes have, decides, and writes one row if nothing has changed since. The
invariant: a row is written only as the next change after what its writer has read, so the rows of a
tenant never have more than some gateway has found to be within the quotas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.directory.group_commit import Statement

if TYPE_CHECKING:
    from cellwall.cluster.directory.group_commit import GroupCommit

_STEP = "quota memory_mb, cpus and file_mb"
_READ = Statement(
    36,
    _STEP,
    """
SELECT coalesce((SELECT change FROM directory.tenants WHERE tenant = $1 AND $2 = ''), 0),
       coalesce(array_agg(node), '{}'), coalesce(array_agg(memory_mb), '{}'),
       coalesce(array_agg(cpus_m), '{}'), coalesce(array_agg(file_mb), '{}')
FROM directory.grants WHERE tenant = $1
""",
)
_NEXT = "greatest({}, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
"""Larger than any number before it, also after the row was removed meanwhile."""
_WRITE = Statement(
    37,
    _STEP,
    f"""
WITH given AS (SELECT $4::bigint AS memory_mb, $5::bigint AS cpus_m, $6::bigint AS file_mb),
wanted AS (SELECT FROM given WHERE memory_mb + cpus_m + file_mb > 0),
changed AS (
  UPDATE directory.tenants SET change = {_NEXT.format("change + 1")}
  WHERE tenant = $1 AND change = $3::bigint AND change <> 0 RETURNING change),
made AS (
  INSERT INTO directory.tenants AS t (tenant, change)
  SELECT $1, {_NEXT.format("1")} WHERE $3::bigint = 0
  ON CONFLICT (tenant) DO UPDATE SET change = excluded.change WHERE t.change = 0 RETURNING change),
mine AS (SELECT change FROM changed UNION ALL SELECT change FROM made),
written AS (
  INSERT INTO directory.grants (tenant, node, memory_mb, cpus_m, file_mb)
  SELECT $1, $2, memory_mb, cpus_m, file_mb FROM mine, given WHERE EXISTS (SELECT FROM wanted)
  ON CONFLICT (tenant, node) DO UPDATE
  SET (memory_mb, cpus_m, file_mb) = (excluded.memory_mb, excluded.cpus_m, excluded.file_mb)),
gone AS (
  DELETE FROM directory.grants
  WHERE tenant = $1 AND node = $2
    AND NOT EXISTS (SELECT FROM wanted) AND EXISTS (SELECT FROM mine))
SELECT coalesce((SELECT max(change) FROM mine), 0)
""",  # noqa: S608 - of constants
)


class Amount(NamedTuple):
    """What is held, or may be."""

    memory_mb: int = 0
    cpus_m: int = 0
    """Thousandths of a CPU."""
    file_mb: int = 0


class Granted(NamedTuple):
    """What the nodes may hold of one tenant's quotas."""

    change: int
    """Number of the latest change; 0: there was none."""
    nodes: dict[str, Amount]


class Grants:
    """The grants, as one gateway changes them. All raise StoreBusy."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits

    async def of(self, tenant: str) -> Granted:
        """Return what is granted of a tenant's quotas."""
        change, names, *columns = await self._commits.do(_READ, tenant, "")
        amounts = (Amount(*each) for each in zip(*columns, strict=True))
        return Granted(int(change), dict(zip(names, amounts, strict=True)))

    async def write(self, tenant: str, node: str, amount: Amount, change: int) -> int:
        """Grant a node an amount, if `change` is still the latest; return the number of this one.

        0: there was another change since, and nothing is written.
        """
        row = await self._commits.do(_WRITE, tenant, node, change, *amount)
        return int(row[0])
