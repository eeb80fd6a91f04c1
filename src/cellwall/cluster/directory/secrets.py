"""Secrets of tenants, as gateways have sealed them: names and hosts can be read here, no value.

The invariant: a value that is read is that of the last change which was answered, so no gateway and
no node has to be told of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.directory.group_commit import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.cluster.directory.group_commit import GroupCommit

MOST = 1000
"""Most secrets of one tenant; a few more if several are made in one moment."""
_STEP = "secrets"
_PUT = Statement(
    17,
    _STEP,
    f"""
WITH made AS (
  INSERT INTO directory.secrets AS s (tenant, name, facts, sealed, changed_at)
  SELECT $1, $2, $3, $4, clock_timestamp()
  WHERE EXISTS (SELECT FROM directory.secrets WHERE tenant = $1 AND name = $2)
     OR (SELECT count(*) FROM directory.secrets WHERE tenant = $1) < {MOST}
  ON CONFLICT (tenant, name) DO UPDATE
  SET facts = excluded.facts, sealed = excluded.sealed, changed_at = excluded.changed_at
  RETURNING changed_at)
SELECT (SELECT extract(epoch FROM changed_at)::float8 FROM made)
""",  # noqa: S608 - of constants
)
_REMOVE = Statement(
    18,
    _STEP,
    """
WITH gone AS (
  DELETE FROM directory.secrets WHERE tenant = $1 AND name = $2 RETURNING true)
SELECT EXISTS (SELECT FROM gone)
""",
)
_OF_TENANT = Statement(
    19,
    _STEP,
    """
SELECT coalesce(array_agg(name ORDER BY name), '{}'),
       coalesce(array_agg(facts ORDER BY name), '{}'),
       coalesce(array_agg(sealed ORDER BY name), '{}'),
       coalesce(array_agg(extract(epoch FROM changed_at)::float8 ORDER BY name), '{}')
FROM directory.secrets
WHERE tenant = $1 AND $2 = '' AND name = ANY ($3)
""",
)
_SHOWN = Statement(
    20,
    _STEP,
    """
SELECT coalesce(array_agg(name ORDER BY name), '{}'),
       coalesce(array_agg(facts ORDER BY name), '{}'),
       coalesce(array_agg(extract(epoch FROM changed_at)::float8 ORDER BY name), '{}')
FROM directory.secrets
WHERE tenant = $1 AND $2 = ''
""",
)


class Shown(NamedTuple):
    """One secret without its value."""

    name: str
    facts: str
    """Its hosts and places, as JSON."""
    changed_at: float
    """Seconds since the epoch."""


class Sealed(NamedTuple):
    """One secret as the directory keeps it."""

    name: str
    facts: str
    """Its hosts and places, as JSON."""
    sealed: bytes
    changed_at: float
    """Seconds since the epoch."""


class Secrets:
    """The secrets, as one gateway reads and changes them. All raise StoreBusy."""

    def __init__(self, commits: GroupCommit) -> None:
        """`commits` has to be under way."""
        self._commits = commits

    async def put(self, tenant: str, name: str, facts: str, sealed: bytes) -> float | None:
        """Keep a secret in the place of one with its name; return when, None: there is no room."""
        row = await self._commits.do(_PUT, tenant, name, facts, sealed)
        return None if row[0] is None else float(row[0])

    async def remove(self, tenant: str, name: str) -> bool:
        """Forget a secret; False: there is none."""
        return bool((await self._commits.do(_REMOVE, tenant, name))[0])

    async def of(self, tenant: str, names: Sequence[str]) -> list[Sealed]:
        """Return those of `names` that a tenant has, by name."""
        row = await self._commits.do(_OF_TENANT, tenant, "", list(names))
        return [Sealed(*each) for each in zip(*row, strict=True)]

    async def shown(self, tenant: str) -> list[Shown]:
        """Return a tenant's secrets by name, without their values."""
        row = await self._commits.do(_SHOWN, tenant, "")
        return [Shown(*each) for each in zip(*row, strict=True)]
