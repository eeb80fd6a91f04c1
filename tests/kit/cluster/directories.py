"""A directory in a real PostgreSQL, as the gateways' own role has it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.schema import init
from kit.servers import descendants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kit.postgres_server import Postgres

ROLE = "cellwall_gateway"


def directory(postgres: Postgres) -> str:
    """Make a directory in a database of its own; return its address for gateways."""
    owner = postgres.database()
    asyncio.run(init(owner, ROLE))
    return as_role(owner)


def as_role(owner: str) -> str:
    """Return the gateways' address of the database that its owner has at another."""
    return owner.replace("postgresql+asyncpg://cellwall@", f"postgresql://{ROLE}@")


def name_of(url: str) -> str:
    """Return the name of the database at an address."""
    return urlsplit(url).path.removeprefix("/")


@contextlib.asynccontextmanager
async def committing(url: str, most_s: float = 2.0) -> AsyncIterator[GroupCommit]:
    """Give the commits of one gateway, which are under way; each takes at most `most_s` seconds."""
    made = GroupCommit(url, most_s)
    task = asyncio.get_running_loop().create_task(made.run())
    try:
        await made.wait_there()
        yield made
    finally:
        task.cancel()
        await asyncio.wait({task})


def stop(postgres: Postgres, how: signal.Signals) -> None:
    """Send a signal to every process of the server: SIGSTOP, SIGCONT."""
    pid = postgres.pid
    for each in (pid, *descendants(pid)):
        os.kill(each, how)
