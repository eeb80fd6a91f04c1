"""Accepting programs in the background: repeats of a key, and what bounds a tenant."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.programs import Accepted, Programs
from cellwall.cluster.gateway.agreed.claims import digest_of
from cellwall.cluster.gateway.background.accepting import Accepting
from cellwall.cluster.gateway.callers import Caller
from cellwall.cluster.gateway.wire.heads import RequestHead
from cellwall.engine.scheduling.quotas import Tenants
from cellwall.model.errors import CapacityError
from cellwall.model.ids import GATEWAYS, new_id
from cellwall.server.auth.keys import Principal
from cellwall.server.core.errors import HttpError
from kit.cluster.directories import directory
from kit.postgres_server import Postgres

BODY = b'{"code": "1", "background": true}'
CALLER = Caller(Principal("moss", "", "run"), [], frozenset())


@pytest.fixture
def url(postgres: Postgres) -> str:
    return directory(postgres)


@contextlib.asynccontextmanager
async def _programs(url: str) -> AsyncIterator[Programs]:
    commits = GroupCommit(url)
    task = asyncio.get_running_loop().create_task(commits.run())
    try:
        await commits.wait_there()
        yield Programs(commits, "one")
    finally:
        task.cancel()
        await asyncio.wait({task})


def _accepting(programs: Programs, most: int) -> Accepting:
    """No request of these tests comes as far as a node."""
    none: Any = None
    return Accepting(none, programs, none, Tenants(), most)


def _head(key: bytes = b"") -> RequestHead:
    named = {b"content-type": b"application/json"}
    if key:
        named[b"idempotency-key"] = key
    return RequestHead(b"POST", b"/execute", list(named.items()), named=named)


def _wanted() -> Accepted:
    shown = '{"execution_id": "gate", "status": "queued"}'
    return Accepted(new_id(GATEWAYS), '{"scope":"run"}', BODY, shown, "")


def test_a_repeat_is_answered_whatever_refuses_new_programs(url: str) -> None:
    async def go() -> None:
        async with _programs(url) as programs:
            head = _head(b"key")
            await programs.accept_with_key("moss", "key", digest_of(head, BODY), _wanted())
            accepting = _accepting(programs, 1)
            kept = await accepting.accept(head, CALLER, "r", BODY)
            assert kept is not None
            assert kept.is_replay
            assert kept.value["status"] == "queued"
            with pytest.raises(HttpError) as caught:
                await accepting.accept(head, CALLER, "r", BODY + b" ")
            assert caught.value.status == 409
            with pytest.raises(CapacityError, match="1 programs wait"):
                await accepting.accept(_head(b"fresh"), CALLER, "r", BODY)

    asyncio.run(go())
