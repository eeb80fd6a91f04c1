"""Connections to the directory's PostgreSQL, and what their failures mean to a caller.

Straight over asyncpg: there is no second database, and a gateway has no memory to spare for the
store's SQL toolkit. The invariant: a commit is on the server's disk before it is answered, and no
error shows the password.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cellwall.model.errors import CellwallError, UsageError
from cellwall.store.records.errors import StoreBroken, StoreBusy, StoreConflict

Connection = Any
"""One of asyncpg's, which has no types."""
_CONNECT_S = 2.0
_RETRY_S = 2.0
_SETTINGS = {
    "application_name": "cellwall-gateway",
    "synchronous_commit": "on",
    # milliseconds
    "statement_timeout": "10000",
    "idle_in_transaction_session_timeout": "3000",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_THERE_IS_ONE = "23505"
_READ_ONLY = "25006"
_AWAY = ("08", "57", "53", "40", "55", _READ_ONLY)
"""SQLSTATE, or classes of it, that pass by themselves: no connection, a stop, no room, locks; a
server that another has replaced."""


def shown(url: str) -> str:
    """Return a URL without its password."""
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{place}"))


def check_url(url: str) -> str:
    """Return a URL as asyncpg takes it. Raises UsageError."""
    if importlib.util.find_spec("asyncpg") is None:
        raise UsageError(
            "directory: PostgreSQL needs a driver that is not installed",
            remedy="run: pip install 'cellwall[postgres]'",
        )
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in {"postgresql", "postgresql+asyncpg"}:
        raise UsageError(
            "directory: that is no address of a PostgreSQL database",
            remedy="give postgresql://USER@HOST/NAME; its password in PGPASSWORD, or in the "
            "environment's CELLWALL_DIRECTORY",
        )
    return f"postgresql://{rest}"


async def connected(url: str, lock_ms: int = 1000) -> Connection:
    """Return a connection, whose statements wait for others' locks for `lock_ms` milliseconds.

    Raises StoreBusy if the server is away, or what `failure` says.
    """
    import asyncpg

    try:
        return await asyncpg.connect(
            check_url(url),
            timeout=_CONNECT_S,
            server_settings={**_SETTINGS, "lock_timeout": str(lock_ms)},
        )
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise failure(f"connect to the directory {shown(url)}", error) from None


@contextlib.asynccontextmanager
async def within(limit_s: float, cut: Callable[[], object]) -> AsyncIterator[None]:
    """End a block after a time; raises then what its connection says, or TimeoutError.

    `cut` ends the block's connection at once. A cancellation alone would not end the block: in a
    transaction the driver asks the server to stop and to roll back, and waits for a server that
    says nothing.
    """
    timer = asyncio.get_running_loop().call_later(limit_s, cut)
    try:
        async with asyncio.timeout(limit_s):  # what has no connection yet
            yield
    finally:
        timer.cancel()


def is_over(connection: Connection, error: Exception) -> bool:
    """Report whether another connection is needed after an error.

    A server that only reads was replaced by another one, which has the address by now or will.
    """
    return connection.is_closed() or getattr(error, "sqlstate", None) == _READ_ONLY


def failure(step: str, error: Exception) -> CellwallError:
    """Return the error for a failed step: StoreBusy if it passes by itself, else StoreBroken."""
    state = getattr(error, "sqlstate", None) or ""
    if state == _THERE_IS_ONE:
        return StoreConflict(f"{step}: there is a row of that name", remedy="use a fresh id")
    if isinstance(error, OSError) or state.startswith(_AWAY) or not (state or _is_wrong(error)):
        return away(step)
    return StoreBroken(
        f"{step}: {error}",
        remedy="check the address, the role and its rights, and that the database exists; "
        "`cellwall cluster directory init` makes the tables",
    )


def _is_wrong(error: Exception) -> bool:
    """Report whether an error without a SQLSTATE is in what was given, not in the connection."""
    return isinstance(error, ValueError)


def away(step: str) -> StoreBusy:
    """Return the error of what needs a directory that does not answer."""
    return StoreBusy(
        f"{step}: the directory does not answer; nothing has begun",
        retry_after_s=_RETRY_S,
        remedy="try again; the operator sees to the directory's PostgreSQL",
    )
