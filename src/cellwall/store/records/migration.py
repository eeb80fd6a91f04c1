"""Migration of a database to the newest version.

An empty database gets the tables of `schema` at once; a test compares those with the result of the
migrations. Alembic does the rest, and is imported only for that: it takes 0.2 s. Everything happens
in the caller's transaction: a crash leaves the old version.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from cellwall.store.records import schema
from cellwall.store.records.errors import StoreBroken

SERVER_ID = "server_id"
_VERSIONS = Path(__file__).parents[1] / "migrations"


def version_of(connection: Connection) -> str | None:
    """Return the version of the database; None for one without any table of cellwall's."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def migrate(connection: Connection, name: str) -> None:
    """Bring the database called `name` to `schema.VERSION` in the transaction that is open.

    Raises `StoreBroken` if a newer cellwall made it, or if it holds tables of another application.
    """
    found = version_of(connection)
    if found == schema.VERSION:
        return
    if found is None:
        _create(connection, name)
        return
    from alembic.util import CommandError

    try:
        upgrade(connection)
    except CommandError:
        raise StoreBroken(
            f"open {name}: it is at version {found!r}, which this cellwall does not know",
            remedy=f"run the cellwall that wrote it, or a newer one (this one knows "
            f"{schema.VERSION}), or restore a backup from before its upgrade",
        ) from None


def _create(connection: Connection, name: str) -> None:
    if others := inspect(connection).get_table_names():
        raise StoreBroken(
            f"open {name}: it holds tables that are not ours: {', '.join(sorted(others)[:5])}",
            remedy="give the store a database of its own",
        )
    schema.tables.create_all(connection)
    schema.version.create(connection)
    connection.execute(schema.version.insert(), {"version_num": schema.VERSION})
    connection.execute(schema.facts.insert(), {"name": SERVER_ID, "value": secrets.token_hex(16)})


def upgrade(connection: Connection) -> None:
    """Run every migration that is still due; for an empty database, all of them."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_VERSIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
