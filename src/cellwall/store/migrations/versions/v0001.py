"""The first version: executions, events, replays, sandboxes, keys, audit, facts.

This module is frozen: a later change to the tables is a version of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None


def _text(name: str, *, nullable: bool = False, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable, primary_key=primary_key)


def _time(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _bytes(name: str, *, nullable: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=nullable)


def _number(name: str, *, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column(
        name, sa.BigInteger(), nullable=False, primary_key=primary_key, autoincrement=False
    )


def upgrade() -> None:
    """Create all tables in an empty database."""
    _executions()
    op.create_table(
        "events",
        _text("execution_id", primary_key=True),
        _number("first_seq", primary_key=True),
        _number("last_seq"),
        _bytes("lines"),
    )
    _replays()
    _sandboxes()
    _keys()
    op.create_table("audit", _number("seq", primary_key=True), _bytes("record"), _bytes("hash"))
    op.create_table("facts", _text("name", primary_key=True), _text("value"))


def _executions() -> None:
    op.create_table(
        "executions",
        _text("id", primary_key=True),
        _text("tenant"),
        _number("seq"),
        _text("sandbox_id", nullable=True),
        _text("state"),
        _text("request_id"),
        _text("asked"),
        _bytes("body", nullable=True),
        _text("on_disconnect"),
        _time("created_at"),
        _time("started_at", nullable=True),
        _time("ended_at", nullable=True),
        _text("answer", nullable=True),
        sa.UniqueConstraint("seq"),
    )
    for state, column in (("queued", "seq"), ("running", "seq"), ("ended", "ended_at")):
        only = sa.text(f"state = '{state}'")
        op.create_index(
            f"executions_{state}",
            "executions",
            [column],
            sqlite_where=only,
            postgresql_where=only,
        )


def _replays() -> None:
    op.create_table(
        "replays",
        _text("tenant", primary_key=True),
        _text("key", primary_key=True),
        _bytes("digest"),
        _text("kind"),
        _text("thing_id"),
        _time("at"),
    )
    op.create_index("replays_at", "replays", ["at"])


def _sandboxes() -> None:
    op.create_table(
        "sandboxes",
        _text("id", primary_key=True),
        _text("tenant"),
        _text("shown"),
        _time("created_at"),
        _time("ended_at", nullable=True),
        _text("ended_because", nullable=True),
    )
    op.create_index("sandboxes_ended_at", "sandboxes", ["ended_at"])


def _keys() -> None:
    op.create_table(
        "keys",
        _text("digest", primary_key=True),
        _text("tenant"),
        _text("scope"),
        _text("name", nullable=True),
        _time("created_at"),
        _time("expires_at", nullable=True),
        _time("revoked_at", nullable=True),
    )
