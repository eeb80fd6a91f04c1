"""Notices of ends of programs, from the end's own transaction until they are delivered.

The invariant: a notice is removed only after its receiver has taken it, or is given up; the gateway
that takes one has it alone until the next attempt is due.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.directory.group_commit import Statement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cellwall.cluster.directory.group_commit import GroupCommit

_STEP = "webhooks"
_DUE = Statement(
    51,
    _STEP,
    """
WITH RECURSIVE tenants (tenant) AS (
  (SELECT n.tenant FROM directory.notices AS n ORDER BY n.tenant LIMIT 1)
  UNION ALL
  SELECT (SELECT n.tenant FROM directory.notices AS n
          WHERE n.tenant > tenants.tenant ORDER BY n.tenant LIMIT 1)
  FROM tenants WHERE tenants.tenant IS NOT NULL),
due AS (
  SELECT found.id FROM tenants CROSS JOIN LATERAL (
    SELECT n.id, n.due_at FROM directory.notices AS n
    WHERE n.tenant = tenants.tenant AND n.due_at <= clock_timestamp() AND $1 = $2
    ORDER BY n.due_at
    LIMIT (SELECT greatest(0, $3 - cardinality(array_positions($6::text[], tenants.tenant))))
    FOR UPDATE SKIP LOCKED) AS found
  ORDER BY found.due_at LIMIT $4),
taken AS (
  UPDATE directory.notices AS n
  SET tries = n.tries + 1, due_at = clock_timestamp() + make_interval(secs => $5)
  FROM due WHERE n.id = due.id RETURNING n.*)
SELECT coalesce(json_agg(json_build_array(id, tenant, url, body, tries)), '[]') FROM taken
""",
)
_AGAIN = Statement(
    52,
    _STEP,
    """
WITH mine AS (
  UPDATE directory.notices SET due_at = clock_timestamp() + make_interval(secs => $4)
  WHERE tenant = $1 AND id = $2 AND tries = $3 RETURNING true)
SELECT EXISTS (SELECT FROM mine)
""",
)
_OVER = Statement(
    53,
    _STEP,
    """
WITH gone AS (
  DELETE FROM directory.notices WHERE tenant = $1 AND id = $2 AND tries = $3 RETURNING true)
SELECT EXISTS (SELECT FROM gone)
""",
)


class Notice(NamedTuple):
    """One notice that this gateway is to deliver now."""

    id: str
    tenant: str
    url: str
    body: str
    tries: int
    """Attempts, with this one."""


class NoticeRows:
    """The notices, as one gateway delivers them. All raise StoreBusy."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits

    async def due(
        self, most_of_tenant: int, most: int, hold_s: float, under_way: Iterable[str] = ()
    ) -> list[Notice]:
        """Take notices that are due, the oldest first.

        No gateway takes them again for `hold_s` seconds. `under_way`: the tenant of each that this
        gateway delivers now, which count among `most_of_tenant` of it.
        """
        row = await self._commits.do(_DUE, "", "", most_of_tenant, most, hold_s, list(under_way))
        return [Notice(*each) for each in json.loads(row[0])]

    async def again(self, notice: Notice, after_s: float) -> None:
        """Have a notice delivered again after so many seconds."""
        await self._commits.do(_AGAIN, notice.tenant, notice.id, notice.tries, after_s)

    async def over(self, notice: Notice) -> None:
        """Forget a notice that was delivered, or is given up."""
        await self._commits.do(_OVER, notice.tenant, notice.id, notice.tries)
