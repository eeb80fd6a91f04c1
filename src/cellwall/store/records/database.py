"""Where statements run: the contract that SQLite and PostgreSQL fulfil.

Work is a plain function over a SQLAlchemy connection, the same for both; a database decides on
which thread or greenlet it runs. The invariant: `write` returns after the transaction is durable,
and a `write` that raises has left nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from cellwall.store.records.changes import Change

T = TypeVar("T")
Work = Callable[[Connection], T]


class Database(Protocol):
    """One database, open."""

    @property
    def journal(self) -> Path | None:
        """Path of a journal that makes writes durable sooner; None if the database needs none."""

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a transaction of its own, commit it, return its result.

        One at a time. Waits for another process's lock at most a short while, then raises an error
        that `driver_errors.kind_of` calls busy.
        """

    async def apply(self, changes: Sequence[Change]) -> None:
        """Make the changes in a transaction of their own, as `write` does; the quickest way."""

    async def read(self, work: Work[T]) -> T:
        """Run `work` over one consistent view; it waits for no writer."""

    async def aclose(self) -> None:
        """Close the database; idempotent."""
