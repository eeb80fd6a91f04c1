"""Set-up that Alembic runs before the versions, on the connection of `records.migration`.

Only Alembic runs it; importing it does nothing useful.
"""

from __future__ import annotations

from alembic import context

from cellwall.store.records.schema import tables

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=tables, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
