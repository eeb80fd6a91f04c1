"""The second version: secrets, whose values are encrypted before they come here.

This module is frozen: a later change to the tables is a version of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "v0002"
down_revision = "v0001"


def upgrade() -> None:
    """Add the table of secrets."""
    op.create_table(
        "secrets",
        sa.Column("tenant", sa.Text(), nullable=False, primary_key=True),
        sa.Column("name", sa.Text(), nullable=False, primary_key=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
    )
