"""PostgreSQL: one connection that writes, a few that read, on the event loop.

SQLAlchemy runs the store's plain functions over asyncpg on a greenlet, so that both databases share
them. It is no cluster: one server writes, other processes (`cellwall keys`) do so now and then. The
invariant: a commit is on the server's disk, whatever the database's or the role's own settings say.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Literal

from sqlalchemy import URL, Connection, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cellwall.model.errors import CellwallError
from cellwall.store.records.changes import Change
from cellwall.store.records.database import T, Work
from cellwall.store.records.driver_errors import claimed, kind_of
from cellwall.store.records.errors import StoreBroken
from cellwall.store.records.migration import migrate
from cellwall.store.records.statements import Mediated
from cellwall.store.records.write_statements import apply

_READERS = 4
_CONNECT_S = 5.0
_SETTINGS = {
    "application_name": "cellwall",
    "synchronous_commit": "on",
    # milliseconds; one attempt, which the writer repeats until a write's bound is over
    "lock_timeout": "250",
    # A server whose machine is gone must not keep its claim for hours.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "idle_in_transaction_session_timeout": "60000",
}
_ASK_AGAIN_S = 0.25
_MARK = text(
    "INSERT INTO facts (name, value) VALUES (:name, :value) "
    "ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING pg_current_xact_id()::text"
)
_MARKED = text("SELECT value FROM facts WHERE name = :name")
_UNMARK = text("DELETE FROM facts WHERE name = :name")
_STATUS = text("SELECT pg_xact_status(CAST(CAST(:number AS text) AS xid8))")
_UNMARK_DEAD = text("DELETE FROM facts WHERE name LIKE 'commit:%' AND age(xmin) > 1000000")
"""Facts of killed processes: none that lives waits for a commit while others make a million."""
_NOT_YET_GIVEN = "22023"
"""SQLSTATE of a transaction number "in the future": the server crashed before the number was on its
disk, and with it whatever the transaction did."""
_MIGRATION_LOCK = 0x63656C6D
_SERVER_LOCK = 0x63656C73


class PostgresDatabase:
    """One database of a PostgreSQL server; see `database.Database`."""

    def __init__(self, url: URL, *, sole: bool) -> None:
        self._name = url.render_as_string()
        """URL without the password."""
        self._engine = _engine(url, 1)
        if sole:
            _claim_with(self._engine, self._name)
        self._readers = _engine(url, _READERS)
        self._turn = asyncio.Lock()
        """Gives the writing connection to one transaction at a time."""
        self._is_closed = False
        self._mark = f"commit:{secrets.token_hex(8)}"
        """Name of the fact that each of this object's transactions gives a value of its own."""

    @property
    def journal(self) -> None:
        """See `Database.journal`: the PostgreSQL server gathers commits itself."""
        return None

    @classmethod
    async def open(cls, url: URL, *, sole: bool = False) -> PostgresDatabase:
        """Connect, check that commits are durable, bring the tables to the newest version.

        Raises `StoreBroken` if that fails, `StoreConflict` if another server has it as `sole`.
        """
        made = cls(url, sole=sole)
        try:
            async with made._engine.begin() as connection:
                await connection.run_sync(_prepare, made._name)
        except CellwallError:
            await made.aclose()
            raise
        except Exception as error:
            await made.aclose()
            raise StoreBroken(
                f"open {made._name}: {error}",
                remedy="check the address, the user, that the database exists, the server's log",
            ) from error
        return made

    async def write(self, work: Work[T]) -> T:
        """See `Database.write`."""
        mark = {"name": self._mark, "value": secrets.token_hex(8)}
        async with self._turn, self._engine.connect() as connection:
            await connection.begin()
            number = (await connection.execute(_MARK, mark)).scalar_one()
            result = await connection.run_sync(work)
            try:
                await connection.commit()
            except Exception as error:
                if kind_of(error) != "lost" or not await self._is_committed(number, mark):
                    raise
            return result

    async def apply(self, changes: Sequence[Change]) -> None:
        """See `Database.apply`."""
        await self.write(lambda connection: apply(Mediated(connection), changes))

    async def _is_committed(self, number: str, mark: Mapping[str, str]) -> bool:
        """Find out whether a transaction whose commit got no answer was committed.

        Guessing either way would lose an accepted row or write it twice, so this waits until the
        server answers again and the transaction is over. Its number alone does not tell: a server
        that crashed may give the number to another transaction, so the mark decides. Raises
        `StoreBroken` if the store is closed before, or if the server does not know: it is another
        one, restored from a backup.
        """
        while not self._is_closed:
            found = await self._ended(number, mark)
            if found is None:
                await asyncio.sleep(_ASK_AGAIN_S)
            elif found == "unknown":
                break
            else:
                return found == "marked"
        raise StoreBroken(
            f"commit to {self._name}: the connection broke, and how it ended is not known",
            remedy="look whether the rows are there before sending them again",
        )

    async def _ended(
        self, number: str, mark: Mapping[str, str]
    ) -> Literal["marked", "unmarked", "unknown"] | None:
        """Return what a transaction left; None while it runs or the server does not answer."""
        try:
            async with self._readers.connect() as connection:
                status = (await connection.execute(_STATUS, {"number": number})).scalar()
                found = (await connection.execute(_MARKED, {"name": mark["name"]})).scalar()
        except Exception as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) == _NOT_YET_GIVEN:
                return "unmarked"
            if kind_of(error) != "lost":
                raise
            return None
        if status == "in progress":
            return None
        if status is None:
            return "unknown"
        return "marked" if found == mark["value"] else "unmarked"

    async def read(self, work: Work[T]) -> T:
        """See `Database.read`; tried once more if an idle connection had broken."""
        try:
            return await self._read(work)
        except Exception as error:
            if kind_of(error) != "lost":
                raise
            return await self._read(work)

    async def _read(self, work: Work[T]) -> T:
        async with self._readers.connect() as connection, connection.begin():
            return await connection.run_sync(work)

    async def aclose(self) -> None:
        """See `Database.aclose`."""
        self._is_closed = True
        with contextlib.suppress(Exception):  # a fact that stays is one row, of no further use
            async with self._engine.begin() as connection:
                await connection.execute(_UNMARK, {"name": self._mark})
        await self._engine.dispose()
        await self._readers.dispose()


def _engine(url: URL, connections: int) -> AsyncEngine:
    return create_async_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        connect_args={"server_settings": _SETTINGS, "timeout": _CONNECT_S},
    )


def _claim_with(engine: AsyncEngine, name: str) -> None:
    """Let a connection be made only while no other server has claimed the database.

    The claim is a lock of the connection's session, so it ends with the connection: a server that
    lost its own and finds the database claimed by another writes nothing any more.
    """

    @event.listens_for(engine.sync_engine, "connect")
    def _claim(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SELECT pg_try_advisory_lock({_SERVER_LOCK})")
        row = cursor.fetchone()
        cursor.close()
        connection.rollback()
        if row is None or row[0] is not True:
            connection.close()
            raise claimed(name)


def _prepare(connection: Connection, name: str) -> None:
    if connection.execute(text("SHOW fsync")).scalar() != "on":
        raise StoreBroken(
            f"open {name}: the server does not wait for its disk (fsync is off)",
            remedy="set fsync = on in postgresql.conf and restart the server",
        )
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
    migrate(connection, name)
    connection.execute(_UNMARK_DEAD)
