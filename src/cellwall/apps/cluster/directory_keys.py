"""Keys in the directory of gateways, for `cellwall keys --directory`: gateways need not run.

Every gateway takes a change up within a second, as one that another gateway has made. The
invariant: the key in clear goes to who made it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from cellwall.cluster.directory.connection import away, connected, shown
from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.keys import Keys
from cellwall.cluster.directory.schema import check_version
from cellwall.model.errors import NotFound
from cellwall.server.auth.key_facts import fresh

if TYPE_CHECKING:
    from cellwall.cluster.directory.keys import Kept
    from cellwall.store.records.rows import KeyRow

T = TypeVar("T")
_PATIENCE_S = 5.0


def create(
    url: str, tenant: str, scope: str, name: str | None, life_s: float | None
) -> tuple[KeyRow, str]:
    """Return a new key's row, which is kept, and the key itself; `life_s` in seconds.

    Raises UsageError, and the errors of the directory.
    """
    made = fresh(tenant, scope, name, life_s)
    record = made.record

    async def put(keys: Keys) -> Kept:
        return await keys.put(record.key_id, record.digest, tenant, scope, name, life_s)

    return _with_keys(url, put), made.key


def rows(url: str) -> list[KeyRow]:
    """Return all keys, oldest first. Raises the errors of the directory."""

    async def read(keys: Keys) -> list[Kept]:
        return (await keys.all())[1]

    return [*_with_keys(url, read)]


def revoke(url: str, key_id: str) -> bool:
    """Revoke a key; report whether it was not before. Raises NotFound, the directory's errors."""

    async def end(keys: Keys) -> tuple[bool, bool]:
        return await keys.revoke(key_id)

    is_there, is_new = _with_keys(url, end)
    if not is_there:
        raise NotFound(f"key {key_id[:64]!r}: there is none", remedy="list them with `keys ls`")
    return is_new


def _with_keys(url: str, work: Callable[[Keys], Awaitable[T]]) -> T:
    async def opened() -> T:
        looking = await connected(url)
        try:
            await check_version(looking, shown(url))
        finally:
            await looking.close()
        commits = GroupCommit(url)
        running = asyncio.get_running_loop().create_task(commits.run())
        try:
            await asyncio.wait_for(commits.wait_there(), _PATIENCE_S)
            return await work(Keys(commits))
        except TimeoutError:
            raise away("keys") from None
        finally:
            running.cancel()
            await asyncio.wait({running})

    return asyncio.run(opened())
