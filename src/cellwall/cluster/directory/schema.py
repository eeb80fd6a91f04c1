"""The directory's tables and who may use them: made by the owner, used by the gateways' role.

`cellwall cluster directory init` calls it; a gateway only looks at the version. One reviewed file
of SQL a version and its number in a table: no other database has these tables, so nothing is gained
by a tool that writes SQL. The invariant: the gateways' role can change rows of the directory and
nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.cluster.directory.connection import connected, failure, shown
from cellwall.model.errors import UsageError
from cellwall.store.records.errors import StoreBroken

if TYPE_CHECKING:
    from cellwall.cluster.directory.connection import Connection

VERSION = 5
_FOLDER = Path(__file__).parent
_LOCK = 0x63656C64
_ROLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OTHERS = """
SELECT table_schema || '.' || table_name FROM information_schema.tables
WHERE table_schema NOT IN ('pg_catalog', 'information_schema', 'directory') LIMIT 1
"""
_POWERS = """
SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolbypassrls OR rolreplication
       OR pg_has_role(rolname, current_user, 'member')
FROM pg_roles WHERE rolname = $1
"""
_RIGHTS = """
REVOKE CREATE, TEMPORARY ON DATABASE {database} FROM PUBLIC, {role};
REVOKE CREATE ON SCHEMA public FROM PUBLIC, {role};
REVOKE ALL ON SCHEMA directory FROM PUBLIC, {role};
REVOKE ALL ON ALL TABLES IN SCHEMA directory FROM PUBLIC, {role};
GRANT CONNECT ON DATABASE {database} TO {role};
GRANT USAGE ON SCHEMA directory TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA directory TO {role};
REVOKE INSERT, UPDATE, DELETE ON directory.version FROM {role};
"""


async def init(url: str, role: str) -> bool:
    """Bring the tables to the newest version and give a role its rights; report a new role.

    `url`: the owner's. Raises UsageError for what cannot be a gateways' role or place, and the
    errors of `connection`.
    """
    import asyncpg

    if not _ROLE.fullmatch(role):
        raise UsageError(
            f"role {role[:64]!r}: not the name of one",
            remedy="give small letters, digits and _, as cellwall_gateway",
        )
    connection = await connected(url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await _migrate(connection, shown(url))
            return await _give_rights(connection, role)
    except asyncpg.PostgresError as error:
        raise failure(f"make the directory in {shown(url)}", error) from None
    finally:
        await connection.close()


async def _migrate(connection: Connection, name: str) -> None:
    found = await version_of(connection)
    if found > VERSION:
        raise _unknown(name, found)
    if found == 0 and (other := await connection.fetchval(_OTHERS)) is not None:
        raise UsageError(
            f"directory: {name} has tables of others: {other}",
            remedy="give the directory a database of its own",
        )
    for number in range(found + 1, VERSION + 1):
        await connection.execute((_FOLDER / f"v{number:04}.sql").read_text(encoding="utf-8"))


async def _give_rights(connection: Connection, role: str) -> bool:
    has_powers = await connection.fetchval(_POWERS, role)
    if has_powers:
        raise UsageError(
            f"role {role}: it may do more than a gateway needs",
            remedy="name another role, which is made if there is none of that name",
        )
    if has_powers is None:
        await connection.execute(f'CREATE ROLE "{role}" LOGIN')
    database = (await connection.fetchval("SELECT current_database()")).replace('"', '""')
    await connection.execute(_RIGHTS.format(database=f'"{database}"', role=f'"{role}"'))
    return has_powers is None


async def version_of(connection: Connection) -> int:
    """Return the version of the directory's tables; 0: there are none."""
    if await connection.fetchval("SELECT to_regclass('directory.version')") is None:
        return 0
    return int(await connection.fetchval("SELECT number FROM directory.version"))


async def check_version(connection: Connection, name: str) -> None:
    """Raise StoreBroken unless the tables are those that this cellwall knows."""
    found = await version_of(connection)
    if found > VERSION:
        raise _unknown(name, found)
    if found < VERSION:
        raise StoreBroken(
            f"directory {name}: its tables are not there"
            if found == 0
            else f"directory {name}: its tables are of version {found}, not {VERSION}",
            remedy="run `cellwall cluster directory init` as the owner of its database",
        )


def _unknown(name: str, found: int) -> StoreBroken:
    return StoreBroken(
        f"directory {name}: its tables are of version {found}, which this cellwall does not know",
        remedy=f"run a newer cellwall; this one knows {VERSION}",
    )
