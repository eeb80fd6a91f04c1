"""The tables, as they are at the newest version.

`migrations` brings an older database there; a test compares the two. There are no foreign keys:
rows expire in bounded batches, in an order of the store's own.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeDecorator

from cellwall.store.records.rows import Json

VERSION = "v0002"
"""The Alembic revision that `tables` show."""


class Encoded(str):
    """The text of an object, as `JsonText` would write it."""

    __slots__ = ()


class JsonText(TypeDecorator[Json]):
    """Strict JSON in ASCII: neither NUL nor a lone surrogate reaches the database as a byte."""

    impl = Text  # type: ignore[mutable-override]
    cache_ok = True  # type: ignore[mutable-override]

    def process_bind_param(self, value: object, dialect: Dialect) -> str | None:
        """Return the value as JSON text; `ValueError` for NaN and the infinities."""
        if value is None or isinstance(value, Encoded):
            return value
        return _encode(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Json | None:
        """Return the object as it was given."""
        if value is None:
            return None
        decoded: Json = json.loads(value)
        return decoded


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

tables = MetaData()


def _only(state: str) -> dict[str, Any]:
    condition = text(f"state = '{state}'")
    return {"sqlite_where": condition, "postgresql_where": condition}


executions = Table(
    "executions",
    tables,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("seq", BigInteger, nullable=False, unique=True),
    Column("sandbox_id", Text),
    Column("state", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("asked", JsonText, nullable=False),
    Column("body", LargeBinary),
    Column("on_disconnect", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("answer", JsonText),
)
# Partial, so that a row is in one of them at a time and an ended one costs nothing to skip.
Index("executions_queued", executions.c.seq, **_only("queued"))
Index("executions_running", executions.c.seq, **_only("running"))
Index("executions_ended", executions.c.ended_at, **_only("ended"))

events = Table(
    "events",
    tables,
    Column("execution_id", Text, primary_key=True),
    Column("first_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("lines", LargeBinary, nullable=False),
)

replays = Table(
    "replays",
    tables,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("kind", Text, nullable=False),
    Column("thing_id", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("replays_at", "at"),
)

sandboxes = Table(
    "sandboxes",
    tables,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("shown", JsonText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("ended_because", Text),
    Index("sandboxes_ended_at", "ended_at"),
)

keys = Table(
    "keys",
    tables,
    Column("digest", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("name", Text),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)

secrets = Table(
    "secrets",
    tables,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("facts", JsonText, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("changed_at", Double, nullable=False),
)

audit = Table(
    "audit",
    tables,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("record", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
)

facts = Table(
    "facts",
    tables,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, as Alembic would make it; not one of `tables`, which Alembic compares."""
