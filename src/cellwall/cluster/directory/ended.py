"""What has ended: the rows of each table that nothing can ask for any more, and their removal.

`design/0065` lists each table with its rule. Every gateway does this once a minute, a thousand rows
at a time; one that another gateway removes in this moment is left to it. The invariant: no row goes
that says what is true now, or that something is lost of which a client may still ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.cluster.directory.group_commit import Statement

if TYPE_CHECKING:
    from cellwall.cluster.directory.group_commit import GroupCommit

_STEP = "rows of what has ended"
_LOST_DAYS = 30
"""For so long it is said of a thing that its node is lost; afterwards, that there is none."""
_NODE_DAYS = 90
"""A machine that comes back later than this under a lost name is not told that it is lost."""
_OLD_S = 3600.0
"""A sandbox that is counted for longer may have ended without a word."""


def _removal(order: int, table: str, rule: str, key: str) -> Statement:
    return Statement(
        order,
        _STEP,
        f"""
WITH old AS (
  SELECT {key} FROM directory.{table} AS t WHERE $1 = '' AND $2 = '' AND {rule}
  LIMIT 1000 FOR UPDATE OF t SKIP LOCKED),
gone AS (DELETE FROM directory.{table} AS t USING old WHERE ({_of("t", key)}) = ({_of("old", key)})
  RETURNING true)
SELECT count(*) FROM gone
""",  # noqa: S608 - of constants
    )


def _of(table: str, key: str) -> str:
    return ", ".join(f"{table}.{name}" for name in key.split(", "))


_IS_LOST = "EXISTS (SELECT FROM directory.nodes WHERE name = t.node AND lost_at < {})"
_AGO = "clock_timestamp() - interval '{} days'"
_KEYS = _removal(
    60,
    "keys",
    "least(t.expires_at, t.revoked_at) < clock_timestamp() - make_interval(days => $3)",
    "id",
)
_GRANTS = _removal(61, "grants", _IS_LOST.format("clock_timestamp()"), "tenant, node")
_PLACES = _removal(
    62,
    "places",
    _IS_LOST.format(_AGO.format(_LOST_DAYS)),
    "tenant, thing",
)
_NODES = _removal(63, "nodes", f"t.lost_at < {_AGO.format(_NODE_DAYS)}", "name")
_GATEWAYS = _removal(64, "gateways", f"t.seen_at < {_AGO.format(1)}", "name")
_TENANTS = _removal(
    65,
    "tenants",
    "t.sandboxes = 0 AND t.running = 0"
    " AND NOT EXISTS (SELECT FROM directory.grants WHERE tenant = t.tenant)",
    "tenant",
)
_LEASES = Statement(
    66,
    _STEP,
    """
SELECT coalesce(array_agg(DISTINCT tenant), '{}') FROM directory.shares
WHERE $1 = '' AND $2 = '' AND until < clock_timestamp()
""",
)
_COUNTED = Statement(
    67,
    _STEP,
    """
SELECT coalesce(array_agg(tenant), '{}') FROM (
  SELECT tenant FROM (
    SELECT DISTINCT tenant FROM directory.sandboxes
    WHERE $1 = '' AND $2 = '' AND made_at < clock_timestamp() - make_interval(secs => $3)
  ) AS each ORDER BY random() LIMIT $4::integer) AS old
""",
)


class Ended:
    """What one gateway removes. All raise StoreBusy, and return how many rows there were."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits

    async def keys(self, after_days: int) -> int:
        """Remove keys that were revoked, or have expired, so many days ago."""
        return await self._remove(_KEYS, after_days)

    async def grants(self) -> int:
        """Remove what was granted to nodes that are lost."""
        return await self._remove(_GRANTS)

    async def places(self) -> int:
        """Remove where things were whose node was lost a month ago."""
        return await self._remove(_PLACES)

    async def nodes(self) -> int:
        """Remove nodes that were lost three months ago."""
        return await self._remove(_NODES)

    async def gateways(self) -> int:
        """Remove gateways that have been silent for a day: they prevent no loss any more."""
        return await self._remove(_GATEWAYS)

    async def tenants(self) -> int:
        """Remove sums of tenants that have nothing; the next need makes them again."""
        return await self._remove(_TENANTS)

    async def with_old_leases(self) -> list[str]:
        """Return the tenants with shares that no gateway has renewed in time."""
        return list((await self._commits.do(_LEASES, "", ""))[0])

    async def with_old_sandboxes(self, most: int) -> list[str]:
        """Return some tenants with sandboxes that have been counted for an hour, at random."""
        return list((await self._commits.do(_COUNTED, "", "", _OLD_S, most))[0])

    async def _remove(self, statement: Statement, *values: object) -> int:
        removed = last = int((await self._commits.do(statement, "", "", *values))[0])
        while last == 1000:
            last = int((await self._commits.do(statement, "", "", *values))[0])
            removed += last
        return removed
