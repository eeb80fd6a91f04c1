"""Alembic's folder: migrations of a database from an older version to the newest."""
