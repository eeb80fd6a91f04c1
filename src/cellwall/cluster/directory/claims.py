"""Claims: where the request of each idempotency key went, for all gateways.

The invariant: a key's row names one node and one id at a time, and is given to another node only
after it is certain that nothing began, or ever will, under that id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.cluster.directory.group_commit import Statement

if TYPE_CHECKING:
    from cellwall.cluster.directory.group_commit import GroupCommit

_KEPT = "interval '24 hours'"
"""As long as a server keeps a key."""
CLAIM = Statement(
    1,
    "idempotency-key",
    f"""
INSERT INTO directory.replays AS r (tenant, key, digest, node, offered, repeats, made_at)
VALUES ($1, $2, $3, $4, $5, 0, clock_timestamp())
ON CONFLICT (tenant, key) DO UPDATE SET
  (digest, node, offered, repeats, made_at) = (
    SELECT excluded.digest, excluded.node, excluded.offered, 0, clock_timestamp()
    WHERE r.made_at < clock_timestamp() - {_KEPT}
    UNION ALL
    SELECT r.digest, r.node, r.offered, r.repeats + 1, r.made_at
    WHERE r.made_at >= clock_timestamp() - {_KEPT}
    LIMIT 1)
RETURNING digest, node, offered, extract(epoch FROM clock_timestamp() - made_at)::float8
""",  # noqa: S608 - of constants
)
FIND_CLAIM = Statement(
    58,
    "idempotency-key",
    f"""
SELECT r.digest, r.node, r.offered, extract(epoch FROM clock_timestamp() - r.made_at)::float8
FROM (SELECT) AS one LEFT JOIN directory.replays AS r
  ON r.tenant = $1 AND r.key = $2 AND r.made_at >= clock_timestamp() - {_KEPT}
""",  # noqa: S608 - of constants
)
_RELEASE = Statement(
    2,
    "idempotency-key",
    """
WITH gone AS (
  DELETE FROM directory.replays
  WHERE tenant = $1 AND key = $2 AND offered = $3 AND ($4 OR repeats = 0) RETURNING true)
SELECT EXISTS (SELECT FROM gone)
""",
)
_SWEEP = Statement(
    3,
    "idempotency-key",
    f"""
WITH old AS (
  SELECT tenant, key FROM directory.replays WHERE made_at < clock_timestamp() - {_KEPT}
    AND $1 = $2 ORDER BY made_at LIMIT 1000 FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM directory.replays AS r USING old
  WHERE r.tenant = old.tenant AND r.key = old.key RETURNING true)
SELECT count(*) FROM gone
""",  # noqa: S608 - of constants
)


@dataclass(frozen=True, slots=True)
class Claim:
    """Where a key's request goes."""

    digest: bytes
    """Of the first request; empty: its body was too long."""
    node: str
    offered: str
    """The id under which it is asked for."""
    age_s: float = field(default=0.0, compare=False)
    """Seconds since it was made, when it was asked for."""


class Claims:
    """The claims, as one gateway makes them."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits

    async def claim(self, tenant: str, key: str, wanted: Claim) -> Claim:
        """Return the claim that holds: `wanted`, or that of an earlier request with the key.

        Raises StoreBusy while the directory is away; the claim may hold then.
        """
        row = await self._commits.do(CLAIM, tenant, key, wanted.digest, wanted.node, wanted.offered)
        return Claim(*row)

    async def release(self, tenant: str, key: str, offered: str, *, is_settled: bool) -> bool:
        """Give a claim up, if it is still that of the id `offered`; report whether that was done.

        `is_settled`: the node has said that nothing ever begins under the id. Otherwise only a
        claim is given up for which no other request has come.
        """
        row = await self._commits.do(_RELEASE, tenant, key, offered, is_settled)
        return bool(row[0])

    async def sweep(self) -> int:
        """Remove a thousand claims that are over; return how many there were."""
        row = await self._commits.do(_SWEEP, "", "")
        return int(row[0])
