"""Accepting programs in the background: repeats of a key, and what bounds a tenant."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellwall.cluster.directory.programs import Accepted, Programs
from cellwall.cluster.gateway.agreed.claims import digest_of
from cellwall.cluster.gateway.background import bounds as bounds_module
from cellwall.cluster.gateway.background.accepting import Accepting
from cellwall.cluster.gateway.background.bounds import Bounds
from cellwall.cluster.gateway.callers import Caller
from cellwall.cluster.gateway.wire.heads import RequestHead
from cellwall.engine.scheduling.quotas import DEFAULT_TIER, Quotas, Tenants
from cellwall.model.errors import CapacityError, QuotaExceeded, UsageError
from cellwall.model.ids import GATEWAYS, new_id
from cellwall.server.auth.keys import Principal
from cellwall.server.core.errors import HttpError
from kit.cluster.directories import committing, directory
from kit.postgres_server import Postgres

BODY = b'{"code": "1", "background": true}'
CALLER = Caller(Principal("moss", "", "run"), [], frozenset())


@pytest.fixture
def url(postgres: Postgres) -> str:
    return directory(postgres)


@contextlib.asynccontextmanager
async def _programs(url: str) -> AsyncIterator[Programs]:
    async with committing(url) as commits:
        yield Programs(commits, "one")


def _accepting(programs: Programs, most: int) -> Accepting:
    """No request of these tests comes as far as a node."""
    none: Any = None
    return Accepting(none, programs, none, Bounds(programs, Tenants(), most))


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


def test_bodies_that_wait_are_bounded_by_their_bytes(url: str) -> None:
    async def go() -> None:
        async with _programs(url) as programs:
            bounds = Bounds(programs, Tenants({DEFAULT_TIER: Quotas(stored_mb=2)}), 100)
            mib = 1 << 20
            await programs.accept("moss", _wanted()._replace(body=bytes(mib)))
            async with bounds.room("moss", mib // 2, has_webhook=False):
                with pytest.raises(QuotaExceeded, match="stored_mb"):  # with what is on its way
                    async with bounds.room("moss", mib // 2 + 1, has_webhook=False):
                        pass
            with pytest.raises(QuotaExceeded, match="stored_mb: 1 of 2"):
                async with bounds.room("moss", mib + 1, has_webhook=False):
                    pass
            with pytest.raises(UsageError, match="can never wait"):
                async with bounds.room("moss", 2 * mib + 1, has_webhook=False):
                    pass
            async with bounds.room("fern", 2 * mib, has_webhook=False):
                pass
            async with bounds.room("moss", mib, has_webhook=False):
                pass

    asyncio.run(go())


def test_notices_that_no_receiver_takes_keep_more_from_being_accepted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds_module, "_MOST_NOTICES", 2)

    async def go() -> None:
        async with _programs(url) as programs:
            bounds = Bounds(programs, Tenants(), 100)
            for number in range(2):
                async with bounds.room("moss", 1, has_webhook=True):
                    wanted = _wanted()._replace(webhook="https://a.example/")
                    await programs.accept("moss", wanted)
                await programs.cancel("moss", wanted.id, "{}", (f"notice-{number}", "{}"))
            with pytest.raises(CapacityError, match="2 notices"):
                async with bounds.room("moss", 1, has_webhook=True):
                    pass
            async with bounds.room("moss", 1, has_webhook=False):
                pass
            async with bounds.room("fern", 1, has_webhook=True):
                pass

    asyncio.run(go())
