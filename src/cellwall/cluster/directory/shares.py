"""Shares: how many programs of a tenant each gateway may have under way, of the tenant's quota.

A share is a lease: a gateway that does not renew it may not use it. The invariant: a tenant's sum
is that of its shares, and no share grows beyond what the quota leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.cluster.directory.group_commit import Statement
from cellwall.model.ids import new_id

if TYPE_CHECKING:
    from cellwall.cluster.directory.group_commit import GroupCommit

LEASE_S = 10.0
"""Seconds for which a share is another gateway's to take only by its own giving back."""
_STEP = "quota running"
_UNTIL = f"clock_timestamp() + make_interval(secs => {LEASE_S})"
_TAKE = Statement(
    8,
    _STEP,
    f"""
WITH sum AS (
  INSERT INTO directory.tenants AS t (tenant, running) VALUES ($1, 1)
  ON CONFLICT (tenant) DO UPDATE SET running = t.running + 1 WHERE t.running < $3
  RETURNING true),
mine AS (
  INSERT INTO directory.shares AS s (tenant, gateway, running, until)
  SELECT $1, $2, 1, {_UNTIL} FROM sum
  ON CONFLICT (tenant, gateway) DO UPDATE
  SET running = s.running + 1, until = excluded.until RETURNING true)
SELECT EXISTS (SELECT FROM mine)
""",  # noqa: S608 - of constants
)
_RENEW = Statement(
    9,
    _STEP,
    f"""
WITH mine AS (
  UPDATE directory.shares SET until = {_UNTIL}
  WHERE tenant = $1 AND gateway = $2 RETURNING running)
SELECT coalesce((SELECT running FROM mine), 0)
""",  # noqa: S608 - of constants
)
_GIVE_BACK = Statement(
    10,
    _STEP,
    """
WITH mine AS (
  UPDATE directory.shares SET running = running - $3
  WHERE tenant = $1 AND gateway = $2 AND running >= $3 RETURNING true),
sum AS (
  UPDATE directory.tenants SET running = running - $3
  WHERE tenant = $1 AND EXISTS (SELECT FROM mine) RETURNING true)
SELECT EXISTS (SELECT FROM sum)
""",
)
_REAP = Statement(
    11,
    _STEP,
    """
WITH gone AS (
  DELETE FROM directory.shares
  WHERE tenant = $1 AND $2 = '' AND until < clock_timestamp() RETURNING running),
sum AS (
  UPDATE directory.tenants SET running = running - (SELECT coalesce(sum(running), 0) FROM gone)
  WHERE tenant = $1 AND EXISTS (SELECT FROM gone) RETURNING true)
SELECT EXISTS (SELECT FROM sum)
""",
)


class Shares:
    """The shares, as one run of a gateway has them. All raise StoreBusy."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits
        self._run = new_id()

    async def take(self, tenant: str, most: int) -> bool:
        """Make this gateway's share larger by one; False: others have all of the quota.

        What others have not renewed is taken from them.
        """
        if (await self._commits.do(_TAKE, tenant, self._run, most))[0]:
            return True
        if not await self.reap(tenant):
            return False
        return bool((await self._commits.do(_TAKE, tenant, self._run, most))[0])

    async def reap(self, tenant: str) -> bool:
        """Take shares back that were not renewed in time; report whether there were some."""
        return bool((await self._commits.do(_REAP, tenant, ""))[0])

    async def renew(self, tenant: str) -> int:
        """Keep this gateway's share for a while longer; return how large it is."""
        return int((await self._commits.do(_RENEW, tenant, self._run))[0])

    async def give_back(self, tenant: str, number: int) -> None:
        """Make this gateway's share smaller."""
        await self._commits.do(_GIVE_BACK, tenant, self._run, number)
