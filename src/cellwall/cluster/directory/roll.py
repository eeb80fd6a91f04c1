"""The roll: which gateways and nodes there are, and which nodes are lost, for all gateways.

A gateway notes about once a second which nodes it has heard, and takes up what others have said.
The invariant: a loss is written only if no gateway can have heard the node later than its fence
ago, by the database's clock alone; and it is never taken back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from cellwall.cluster.directory.connection import connected, shown, within
from cellwall.cluster.directory.schema import check_version
from cellwall.model.errors import UsageError
from cellwall.model.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from cellwall.cluster.directory.connection import Connection

_SILENT_S = 600.0
"""A gateway that stopped noting anything without leaving may still be heard by nodes: for so long
no loss is told. Afterwards it is taken for dead."""
_LEAVE_S = 2.0
_ENTER = """
INSERT INTO directory.gateways (name, run, seen_at) VALUES ($1, $2, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET run = excluded.run, seen_at = excluded.seen_at
"""
_SEEN = """
UPDATE directory.gateways SET seen_at = clock_timestamp() WHERE name = $1 AND run = $2
RETURNING true
"""
_LEAVE = "DELETE FROM directory.gateways WHERE name = $1 AND run = $2"
_HEARD = """
INSERT INTO directory.nodes AS n (name, address, heard_at)
SELECT name, address, clock_timestamp()
FROM unnest($1::text[], $2::text[]) AS heard (name, address) ORDER BY name
ON CONFLICT (name) DO UPDATE SET heard_at = clock_timestamp(), address = excluded.address
WHERE n.lost_at IS NULL
"""
_NODES = """
SELECT name, why, lost_at, heard_at < clock_timestamp() - make_interval(secs => $1) AS is_overdue
FROM directory.nodes
WHERE lost_at IS NULL OR $2::timestamptz IS NULL OR lost_at > $2 - interval '1 minute'
"""
_SILENT = """
SELECT name FROM directory.gateways
WHERE name <> $1 AND seen_at <= clock_timestamp() - make_interval(secs => $2)
  AND seen_at > clock_timestamp() - make_interval(secs => $3) ORDER BY name LIMIT 1
"""
_LOST = f"""
UPDATE directory.nodes SET lost_at = clock_timestamp(), why = $4
WHERE name = $5 AND lost_at IS NULL
  AND heard_at < clock_timestamp() - make_interval(secs => $6)
  AND NOT EXISTS ({_SILENT})
RETURNING true
"""  # noqa: S608 - of constants
_GIVEN_BACK = """
WITH gone AS (DELETE FROM directory.sandboxes WHERE node = $1 RETURNING tenant),
     sums AS (SELECT tenant, count(*) AS number FROM gone GROUP BY tenant),
     locked AS (
       SELECT t.tenant, sums.number FROM directory.tenants AS t JOIN sums USING (tenant)
       ORDER BY t.tenant FOR UPDATE OF t)
UPDATE directory.tenants AS t SET sandboxes = t.sandboxes - locked.number
FROM locked WHERE t.tenant = locked.tenant
"""


class NameTaken(UsageError):
    """Another gateway runs under this one's name."""


class Found(NamedTuple):
    """What the directory says."""

    known: frozenset[str]
    """Names of nodes that are not lost."""
    lost: dict[str, str]
    """Why each node was lost; of late, or all at the first time."""
    overdue: list[str]
    """Names of nodes that no gateway has noted for longer than their fence."""


class Roll:
    """The roll, as one gateway has it."""

    def __init__(self, url: str, name: str, lost_after_s: float, fresh_s: float) -> None:
        """`fresh_s`: a gateway that noted something within so many seconds is not silent."""
        self._url = url
        self.name = name
        self._run = new_id()
        self._lost_after_s = lost_after_s
        self._fresh_s = fresh_s
        self._connection: Connection = None
        self._has_entered = False
        self._since: datetime | None = None
        """When the latest loss was that is known here, by the database's clock."""

    async def note(self, heard: Sequence[tuple[str, str]]) -> Found:
        """Note nodes, by name and address, that were heard; return what is known.

        Raises NameTaken, StoreBusy, StoreBroken, and the driver's errors, which mean that the
        directory is away.
        """
        connection = await self._connected()
        async with connection.transaction():
            if not self._has_entered:
                await connection.execute(_ENTER, self.name, self._run)
            elif not await connection.fetchval(_SEEN, self.name, self._run):
                raise NameTaken(
                    f"gateway {self.name}: another one runs under this name",
                    remedy="give each gateway a name of its own in [gateway]",
                )
            if heard:
                names, addresses = zip(*heard, strict=True)
                await connection.execute(_HEARD, names, addresses)
            rows = await connection.fetch(_NODES, self._lost_after_s, self._since)
        self._has_entered = True
        return self._found(rows)

    def _found(self, rows: Sequence[Connection]) -> Found:
        lost = [row for row in rows if row["lost_at"] is not None]
        self._since = max((row["lost_at"] for row in lost), default=self._since)
        living = [row for row in rows if row["lost_at"] is None]
        return Found(
            frozenset(row["name"] for row in living),
            {row["name"]: row["why"] for row in lost},
            [row["name"] for row in living if row["is_overdue"]],
        )

    async def declare(self, name: str) -> str:
        """Write the loss of a node that is overdue; return the gateway that prevents it, or ''.

        A gateway that is silent without having left may hear the node, so it prevents a loss.
        """
        connection = await self._connected()
        silent = (self.name, self._fresh_s, _SILENT_S)
        why = f"no gateway heard it for {self._lost_after_s:g} s"
        async with connection.transaction():
            is_lost = await connection.fetchval(_LOST, *silent, why, name, self._lost_after_s)
            if is_lost:
                await connection.execute(_GIVEN_BACK, name)
                return ""
            return str(await connection.fetchval(_SILENT, *silent) or "")

    async def leave(self) -> None:
        """Say that this gateway hears no node any more, and close. Raises nothing."""
        with contextlib.suppress(Exception):
            async with within(_LEAVE_S, self.drop):
                connection = await self._connected()
                await connection.execute(_LEAVE, self.name, self._run)
        self.drop()

    def drop(self) -> None:
        """Close the connection at once: it broke, or does not answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = connection = await connected(self._url)
            await check_version(connection, shown(self._url))
            return connection
        return self._connection
