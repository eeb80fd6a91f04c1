"""What the store's tests share: rows made short, and a store that is closed at the end."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from cellwall.store.records.changes import AppendAudit, Ended
from cellwall.store.records.rows import (
    AuditRow,
    EventChunk,
    ExecutionRow,
    KeyRow,
    Leftover,
    ReplayRow,
    SandboxRow,
)
from cellwall.store.store import Store

T = TypeVar("T")


def execution(seq: int, **changed: Any) -> ExecutionRow:
    values: dict[str, Any] = {
        "id": f"ex{seq}",
        "tenant": "moss",
        "seq": seq,
        "sandbox_id": None,
        "state": "queued",
        "request_id": f"r{seq}",
        "asked": {"language": "python"},
        "body": b"print(%d)" % seq,
        "on_disconnect": "detach",
        "created_at": 100.0 + seq,
    }
    return ExecutionRow(**{**values, **changed})


def sandbox(name: str, **changed: Any) -> SandboxRow:
    values: dict[str, Any] = {"id": name, "tenant": "moss", "shown": {"n": 1}, "created_at": 1.0}
    return SandboxRow(**{**values, **changed})


def key(digest: str = "ab" * 32) -> KeyRow:
    return KeyRow(digest, "moss", "run", "laptop", 5.0)


def replay(thing_id: str, at: float = 10.0) -> ReplayRow:
    return ReplayRow("moss", "once", b"\x00digest", "execution", thing_id, at)


def chunk(seq: int, first: int, last: int) -> EventChunk:
    lines = b"".join(b'{"seq":%d}\n' % number for number in range(first, last + 1))
    return EventChunk(f"ex{seq}", first, last, lines)


def chained(record: bytes) -> AppendAudit:
    def make(seq: int, before: bytes) -> AuditRow:
        return AuditRow(seq, record, hashlib.sha256(before + record).digest())

    return AppendAudit(make)


def ended(seq: int, verdict: str = "ok", at: float = 200.0) -> Ended:
    return Ended(f"ex{seq}", at, {"verdict": verdict})


def end_leftover(left: Leftover) -> list[Ended]:
    closing = EventChunk(left.row.id, left.last_seq + 1, left.last_seq + 1, b'{"type":"end"}\n')
    return [Ended(left.row.id, 900.0, {"verdict": left.because}, (closing,))]


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[Store]:
    store = await Store.open(url, **settings)
    try:
        yield store
    finally:
        await store.aclose()


def with_store(url: str, work: Callable[[Store], Awaitable[T]], **settings: Any) -> T:
    """Run `work` over a store on a loop of its own, and close it."""

    async def run() -> T:
        async with opened(url, **settings) as store:
            return await work(store)

    return asyncio.run(run())


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Hold the database's write lock from a connection that is not the store's."""
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def unsealed(_: Sequence[object]) -> Callable[[int, bytes], AuditRow]:
    raise AssertionError("nothing is audited here")
