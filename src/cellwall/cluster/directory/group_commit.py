"""Group commit: what requests need of the directory within a moment is one transaction.

One connection, whose commits follow each other; what comes during one goes into the next, so a busy
gateway waits for the server's disk a few hundred times a second and not once a request. The
invariants: an answer is given after its commit alone; and while the server is away every need is
refused at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.cluster.directory.connection import away, connected, failure, is_over, within
from cellwall.store.records.errors import StoreBusy

if TYPE_CHECKING:
    from cellwall.cluster.directory.connection import Connection

_MOST = 500
"""Needs in one transaction."""
_MOST_BYTES = 4 << 20
"""Bytes that the needs of a transaction move together, so that it is over long before `_COMMIT_S`.
A need that is larger is a transaction by itself."""
_COMMIT_S = 2.0
"""Longest time of a transaction on which requests wait."""
_LOCK_MS = 300
"""Much less than `_COMMIT_S`: after one row that another holds there is time for the others."""
_AGAIN_S = 0.5
_log = logging.getLogger("cellwall.gateway")


class Statement(NamedTuple):
    """A statement that returns one row for each set of values.

    The first two values are texts, and in their order rows are locked.
    """

    order: int
    """Its place among the statements of a transaction, the same at each gateway."""
    step: str
    """What it does, for errors."""
    text: str


class _Need(NamedTuple):
    statement: Statement
    values: tuple[Any, ...]
    size_bytes: int
    done: asyncio.Future[Any]


class GroupCommit:
    """See the module. `run` has to be under way."""

    def __init__(self, url: str, most_s: float = _COMMIT_S) -> None:
        """A transaction that takes longer than `most_s` seconds ends its connection."""
        self._url = url
        self._most_s = most_s
        self._waiting: list[_Need] = []
        self._woken = asyncio.Event()
        self._connection: Connection = None
        self._there = asyncio.Event()
        self.commits = 0
        """Transactions so far."""

    async def do(self, statement: Statement, *values: object, size_bytes: int = 0) -> Any:  # noqa: ANN401 - asyncpg's
        """Return the row of a statement, which is committed. Raises StoreBusy, StoreBroken.

        `size_bytes`: of the values and the row, where they may have more than some KiB.
        After StoreBusy it may have been committed all the same: the connection broke.
        """
        if self._connection is None or self._connection.is_closed():
            raise away(statement.step)
        need = _Need(statement, values, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(need)
        self._woken.set()
        return await need.done

    async def wait_there(self) -> None:
        """Return once there is a connection."""
        await self._there.wait()

    async def run(self) -> None:
        """Commit for ever, over one connection after the other."""
        while True:
            try:
                self._connection = await connected(self._url, _LOCK_MS)
                self._connection.add_termination_listener(self._wake)
                self._there.set()
                await self._commit_all()
            except Exception as error:  # noqa: BLE001 - a directory that is away comes back
                _log.warning("directory: %s", error)
            finally:
                self._there.clear()
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.terminate()
                waiting, self._waiting = self._waiting, []
                _refuse(waiting)
            await asyncio.sleep(_AGAIN_S)

    def _wake(self, _connection: Connection) -> None:
        """Have a connection that has ended replaced before it is needed."""
        self._there.clear()
        self._woken.set()

    async def _commit_all(self) -> None:
        """Commit until the connection breaks. Raises its error."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self._connection.is_closed():
                raise away("commit")
            while self._waiting:
                await self._commit_in_time(self._next())
                await self._commit_in_time(self._next_large())

    def _next(self) -> list[_Need]:
        """Take what waits longest, and of the rest what has room in the same transaction."""
        batch, left, size_bytes = list[_Need](), list[_Need](), 0
        for need in self._waiting:
            if len(batch) < _MOST and size_bytes + need.size_bytes <= _MOST_BYTES:
                batch.append(need)
                size_bytes += need.size_bytes
            else:
                left.append(need)
        self._waiting = left
        return batch

    def _next_large(self) -> list[_Need]:
        """Take the first need that is too large for a transaction with others; empty: none is."""
        for at, need in enumerate(self._waiting):
            if need.size_bytes > _MOST_BYTES:
                return [self._waiting.pop(at)]
        return []

    async def _commit_in_time(self, batch: list[_Need]) -> None:
        """Commit needs, which are refused if that fails. Raises the connection's error."""
        if not batch:
            return
        try:
            async with within(self._most_s, self._connection.terminate):
                await self._commit(batch)
        except BaseException:
            _refuse(batch)
            raise

    async def _commit(self, batch: list[_Need]) -> None:
        """Commit needs together; where one cannot be met, each for itself."""
        import asyncpg

        try:
            found = await self._together(batch)
        except asyncpg.PostgresError as error:
            if is_over(self._connection, error):
                raise
            if len(batch) > 1:
                await self._one_by_one(batch)
            elif not batch[0].done.done():
                batch[0].done.set_exception(failure(batch[0].statement.step, error))
            return
        for need, row in found:
            if not need.done.done():
                need.done.set_result(row)

    async def _one_by_one(self, batch: list[_Need]) -> None:
        """Commit each need for itself; where a tenant's row is locked, only one waits for it."""
        locked: set[Any] = set()
        for need in batch:
            if need.values[0] in locked:
                _refuse([need])
                continue
            await self._commit([need])
            if not need.done.cancelled() and isinstance(need.done.exception(), StoreBusy):
                locked.add(need.values[0])

    async def _together(self, batch: list[_Need]) -> list[tuple[_Need, Any]]:
        kinds: dict[Statement, list[_Need]] = {}
        for need in batch:
            kinds.setdefault(need.statement, []).append(need)
        found: list[tuple[_Need, Any]] = []
        self.commits += 1
        if len(kinds) == 1:  # it is a transaction by itself
            await self._all_of(kinds, found)
        else:
            async with self._connection.transaction():
                await self._all_of(kinds, found)
        return found

    async def _all_of(
        self, kinds: dict[Statement, list[_Need]], found: list[tuple[_Need, Any]]
    ) -> None:
        for statement in sorted(kinds):
            needs = sorted(kinds[statement], key=lambda need: need.values[:2])
            values = [need.values for need in needs]
            rows = await self._connection.fetchmany(statement.text, values)
            found += zip(needs, rows, strict=True)


def _refuse(needs: list[_Need]) -> None:
    for need in needs:
        if not need.done.done():
            need.done.set_exception(away(need.statement.step))
