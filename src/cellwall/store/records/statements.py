"""Execution of a statement: through SQLAlchemy, or by SQLite's driver itself.

The statements are the same (`write_statements`). SQLAlchemy takes 0.2-0.4 ms of processor time for
each, most of what a small commit costs; SQLite's own driver takes 0.03 ms. So the writes of every
execution go there directly, with the text and the types that SQLAlchemy compiled once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from sqlalchemy import Connection, Dialect, Executable, Select, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement

Values = dict[str, Any]
_AUDIT_LOCK = 0x63656C6C


class Sender(Protocol):
    """Runs statements in an open transaction."""

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""

    def send(self, statement: Executable, values: Sequence[Values], *, counted: bool) -> int:
        """Run the statement for each of the values; return the changed rows if `counted`."""

    def first(self, statement: Select[Any]) -> Sequence[Any] | None:
        """Return the first row."""

    def lock_audit(self) -> None:
        """Block all other appends to the audit until this transaction is over."""


@dataclass(frozen=True, slots=True)
class Mediated:
    """Sends statements through SQLAlchemy, on any database."""

    connection: Connection

    @property
    def dialect(self) -> str:
        """See `Sender.dialect`."""
        return self.connection.dialect.name

    def send(self, statement: Executable, values: Sequence[Values], *, counted: bool) -> int:
        """See `Sender.send`."""
        run = self.connection.execute
        if not counted or len(values) == 1 or self.connection.dialect.supports_sane_multi_rowcount:
            return run(statement, values).rowcount
        return sum(run(statement, one).rowcount for one in values)

    def first(self, statement: Select[Any]) -> Sequence[Any] | None:
        """See `Sender.first`."""
        return self.connection.execute(statement).first()

    def lock_audit(self) -> None:
        """See `Sender.lock_audit`: another process (`cellwall keys`) may append too."""
        if self.dialect == "postgresql":  # SQLite has one writer anyway
            self.connection.execute(text(f"SELECT pg_advisory_xact_lock({_AUDIT_LOCK})"))


@dataclass(frozen=True, slots=True)
class _Slot:
    """One `?` of a statement."""

    name: str
    encode: Callable[[Any], Any] | None
    is_fixed: bool
    fixed: object
    """The value that the statement itself gives, encoded."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    sql: str
    slots: tuple[_Slot, ...]

    def row(self, values: Values) -> tuple[Any, ...]:
        """Return the bound values, in the order of the `?`."""
        return tuple(
            slot.fixed
            if slot.is_fixed
            else values[slot.name]
            if slot.encode is None
            else slot.encode(values[slot.name])
            for slot in self.slots
        )


@dataclass(frozen=True, slots=True)
class Direct:
    """Sends statements to SQLite's driver.

    Errors are the driver's own: `driver_errors` knows both kinds.
    """

    connection: sqlite3.Connection

    @property
    def dialect(self) -> str:
        """See `Sender.dialect`."""
        return "sqlite"

    def send(self, statement: Executable, values: Sequence[Values], *, counted: bool) -> int:
        """See `Sender.send`."""
        del counted  # the driver sums over the rows
        compiled = _compiled(statement)
        if len(values) == 1:
            return self.connection.execute(compiled.sql, compiled.row(values[0])).rowcount
        return self.connection.executemany(compiled.sql, map(compiled.row, values)).rowcount

    def first(self, statement: Select[Any]) -> Sequence[Any] | None:
        """See `Sender.first`; bytes and numbers only, no type is decoded."""
        compiled = _compiled(statement)
        row: Sequence[Any] | None = self.connection.execute(
            compiled.sql, compiled.row({})
        ).fetchone()
        return row

    def lock_audit(self) -> None:
        """See `Sender.lock_audit`: SQLite has one writer."""


_DIALECT: Dialect = sqlite.dialect(paramstyle="qmark")


@cache
def _compiled(statement: Executable) -> _Compiled:
    """Return a statement's compiled form; cached by identity, as each statement is a constant."""
    made = cast(SQLCompiler, cast(ClauseElement, statement).compile(dialect=_DIALECT))
    return _Compiled(made.string, tuple(_slot(made, name) for name in made.positiontup or ()))


def _slot(made: SQLCompiler, name: str) -> _Slot:
    bind = made.binds[name]
    encode = bind.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)
    fixed = None if bind.required else bind.effective_value
    return _Slot(
        name, encode, not bind.required, fixed if encode is None or fixed is None else encode(fixed)
    )
