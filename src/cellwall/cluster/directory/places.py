"""Places: at which node a tenant's volume or template of a name is made, and lies from then on.

The invariant: a name has one row, so of gateways that make it at once all ask one node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.directory.group_commit import Statement

if TYPE_CHECKING:
    from cellwall.cluster.directory.group_commit import GroupCommit

MOST = 4000
"""Most names of one tenant; a few more if several are claimed in one moment."""
_STEP = "places"
_CLAIM = Statement(
    30,
    _STEP,
    f"""
WITH known AS (
  UPDATE directory.places SET uses = uses + 1, made_at = clock_timestamp()
  WHERE tenant = $1 AND thing = $2
  RETURNING node, uses),
made AS (
  INSERT INTO directory.places AS p (tenant, thing, node, uses, made_at)
  SELECT $1, $2, $3, 0, clock_timestamp()
  WHERE NOT EXISTS (SELECT FROM known)
    AND (SELECT count(*) FROM directory.places WHERE tenant = $1) < {MOST}
  ON CONFLICT (tenant, thing) DO UPDATE SET uses = p.uses + 1, made_at = excluded.made_at
  RETURNING node, uses)
SELECT coalesce((SELECT node FROM known), (SELECT node FROM made)),
       coalesce((SELECT uses FROM known), (SELECT uses FROM made))
""",  # noqa: S608 - of a constant
)
_FIND = Statement(
    31,
    _STEP,
    "SELECT max(node), max(uses) FROM directory.places WHERE tenant = $1 AND thing = $2",
)
_NOTE = Statement(
    32,
    _STEP,
    """
WITH made AS (
  INSERT INTO directory.places AS p (tenant, thing, node, uses, made_at)
  SELECT $1, $2, $3, 0, clock_timestamp()
  WHERE $4 = '' OR EXISTS (SELECT FROM directory.places WHERE tenant = $1 AND thing = $2)
  ON CONFLICT (tenant, thing) DO UPDATE SET node = excluded.node, uses = p.uses + 1
  WHERE p.node = $4 RETURNING true)
SELECT EXISTS (SELECT FROM made)
""",
)
_FORGET = Statement(
    33,
    _STEP,
    """
WITH gone AS (
  DELETE FROM directory.places WHERE tenant = $1 AND thing = $2 AND node = $3 AND uses = $4
  RETURNING true)
SELECT EXISTS (SELECT FROM gone)
""",
)
_OF_TENANT = Statement(
    34,
    _STEP,
    """
SELECT coalesce(array_agg(thing), '{}'), coalesce(array_agg(node), '{}')
FROM directory.places WHERE tenant = $1 AND starts_with(thing, $2)
""",
)


_OLD = Statement(
    35,
    _STEP,
    """
SELECT coalesce(array_agg(tenant), '{}'), coalesce(array_agg(thing), '{}'),
       coalesce(array_agg(node), '{}'), coalesce(array_agg(uses), '{}')
FROM (SELECT * FROM directory.places
      WHERE $1 = '' AND $2 = '' AND made_at < clock_timestamp() - interval '1 day'
      ORDER BY random() LIMIT $3::integer) AS old
""",
)


class PlaceRow(NamedTuple):
    """One row."""

    tenant: str
    thing: str
    node: str
    uses: int


class PlaceRows:
    """The rows, as one gateway changes them. All raise StoreBusy while the directory is away."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits

    async def claim(self, tenant: str, thing: str, node: str) -> tuple[str, int] | None:
        """Return node and uses of the row that holds; None: the tenant has too many."""
        row = await self._commits.do(_CLAIM, tenant, thing, node)
        return None if row[0] is None else (str(row[0]), int(row[1]))

    async def find(self, tenant: str, thing: str) -> tuple[str, int] | None:
        """Return node and uses of a row; None: there is none."""
        row = await self._commits.do(_FIND, tenant, thing)
        return None if row[0] is None else (str(row[0]), int(row[1]))

    async def note(self, tenant: str, thing: str, node: str, instead_of: str) -> None:
        """Set the node of a row that has another, or make one; empty `instead_of`: there is none.

        A row that has changed meanwhile stays as it is.
        """
        await self._commits.do(_NOTE, tenant, thing, node, instead_of)

    async def forget(self, tenant: str, thing: str, node: str, uses: int) -> None:
        """Remove a row, unless it has changed since."""
        await self._commits.do(_FORGET, tenant, thing, node, uses)

    async def old(self, most: int) -> list[PlaceRow]:
        """Return some rows that nothing has claimed for a day, at random."""
        columns = await self._commits.do(_OLD, "", "", most)
        return [PlaceRow(*each) for each in zip(*columns, strict=True)]

    async def of(self, tenant: str, begins: str) -> dict[str, str]:
        """Return the node of each of a tenant's things whose name begins so."""
        row = await self._commits.do(_OF_TENANT, tenant, begins)
        return dict(zip(*row, strict=True))
