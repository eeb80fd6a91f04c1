"""Keys in a real directory: known to every ring, revoked in every ring, by the server's clock."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from cellwall.cluster.directory.group_commit import GroupCommit
from cellwall.cluster.directory.keys import Kept, Keys, Version
from cellwall.cluster.gateway.tenants.key_book import KeyBook, records
from cellwall.model.errors import Conflict, NotFound, UsageError
from cellwall.server.auth.key_facts import fresh
from cellwall.server.auth.keys import KeyRecord, KeyRing, digest_of
from cellwall.store.records.errors import StoreBusy
from kit.cluster.directories import directory, name_of
from kit.postgres_server import Postgres, another
from kit.waiting import wait_until

FIXED = "f" * 43


@dataclass
class Gate:
    """What one gateway has of keys."""

    commits: GroupCommit
    ring: KeyRing = field(default_factory=lambda: KeyRing([KeyRecord(digest_of(FIXED), "ops")]))
    gone: list[None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.book = KeyBook(Keys(self.commits), self.ring, lambda: self.gone.append(None))


@pytest.fixture
def url(postgres: Postgres) -> str:
    return directory(postgres)


@pytest.fixture(scope="module")
def own(postgres: Postgres) -> Iterator[Postgres]:
    """A server that a test may stop; the capability was asked for by `postgres`."""
    with another() as made:
        yield made


@contextlib.asynccontextmanager
async def _gates(url: str, count: int = 2) -> AsyncIterator[list[Gate]]:
    """Run so many gateways' books, each with a connection of its own."""
    loop = asyncio.get_running_loop()
    gates = [Gate(GroupCommit(url)) for _ in range(count)]
    tasks = [loop.create_task(each.commits.run()) for each in gates]
    try:
        for each in gates:
            await each.commits.wait_there()
            await each.book.begin()
        yield gates
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _until(fact: Callable[[], bool], gate: Gate | KeyBook) -> None:
    """Follow the directory until something is so."""
    book = gate if isinstance(gate, KeyBook) else gate.book
    watching = asyncio.get_running_loop().create_task(book.watch())
    try:
        await asyncio.to_thread(wait_until, fact, "the gateway knows it")
    finally:
        watching.cancel()


def test_key_that_one_gateway_makes_is_known_to_the_others_and_so_is_its_end(
    url: str, postgres: Postgres
) -> None:
    async def run() -> None:
        async with _gates(url) as (first, second):
            made = await first.book.create(fresh("moss", "manage", "ci", None))
            key = made["key"]
            assert (made["tenant"], made["scope"], made["name"]) == ("moss", "manage", "ci")
            assert second.ring.find(key) is None  # it has not looked
            await _until(lambda: second.ring.find(key) is not None, second)
            for gate in (first, second):
                found = gate.ring.find(key)
                assert found is not None
                assert (found.tenant, found.scope, found.key_id) == ("moss", "manage", made["id"])
                assert gate.ring.find(FIXED) is not None
            (listed,) = await second.book.listed()
            assert listed == {name: value for name, value in made.items() if name != "key"}
            assert await second.book.revoke(made["id"])
            assert second.ring.find(key) is None  # at once, where it was asked for
            assert second.gone == [None]
            await _until(lambda: first.ring.find(key) is None, first)
            assert first.gone == [None]
            assert not await first.book.revoke(made["id"])  # it had been
            (listed,) = await first.book.listed()
            assert listed["revoked_at"] is not None
            assert first.ring.find(FIXED) is not None
            dump = await asyncio.to_thread(
                postgres.sql, "SELECT * FROM directory.keys", name_of(url)
            )
            assert key not in dump
            assert digest_of(key) in dump  # the control: the search finds what is there

    asyncio.run(run())


def test_keys_of_the_settings_and_unknown_ones_are_not_revoked(url: str) -> None:
    async def run() -> None:
        async with _gates(url, 1) as (gate,):
            with pytest.raises(Conflict, match="in the configuration"):
                await gate.book.revoke(digest_of(FIXED)[:12])
            with pytest.raises(NotFound):
                await gate.book.revoke("0" * 12)
            assert gate.gone == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("tenant", "scope", "name", "life_s"),
    [
        ("", "run", None, None),
        ("moss", "root", None, None),
        ("moss", "run", "x" * 65, None),
        ("moss", "run", None, 0.0),
        ("moss", "run", None, float("nan")),
        ("m\0ss", "run", None, None),
    ],
)
def test_key_that_cannot_be_is_refused(
    tenant: str, scope: str, name: str | None, life_s: float | None
) -> None:
    with pytest.raises(UsageError):
        fresh(tenant, scope, name, life_s)
    assert fresh("moss", "run", None, None).key not in repr(fresh("moss", "run", None, None))


def test_key_expires_and_its_requests_are_told(url: str) -> None:
    async def run() -> None:
        async with _gates(url, 1) as (gate,):
            key = (await gate.book.create(fresh("moss", "run", None, 0.7)))["key"]
            assert gate.ring.find(key) is not None
            await _until(lambda: bool(gate.gone), gate)
            assert gate.ring.find(key) is None

    asyncio.run(run())


def test_life_is_counted_from_here_whatever_the_clocks_say() -> None:
    """A gateway whose clock is an hour behind gives the key the same seconds."""
    row = Kept("0" * 64, "moss", "run", None, 7200.0, 7260.0, None, left_s=60.0)
    for now in (7200.0, 3600.0):
        (record,) = records([row], now)
        assert not record.has_expired(now + 59)
        assert record.has_expired(now + 60)


def test_row_that_cannot_be_and_one_that_is_over_open_nothing() -> None:
    good = Kept("1" * 64, "moss", "run", None, 0.0, None)
    rows = [
        Kept("2" * 64, "moss", "root", None, 0.0, None),
        Kept("short", "moss", "run", None, 0.0, None),
        Kept("3" * 64, "moss", "run", None, 0.0, None, revoked_at=1.0),
        Kept("4" * 64, "moss", "run", None, 0.0, 1.0, None, left_s=-1.0),
    ]
    assert [each.digest for each in records([*rows, good], 0.0)] == [good.digest]


def test_revocation_is_heard_also_of_a_directory_with_a_lower_number(
    url: str, postgres: Postgres
) -> None:
    """Such as a server that was restored, or that has taken over without the last changes."""
    back = "UPDATE directory.changes SET number = -7 WHERE what = 'keys'"
    revoked = "UPDATE directory.keys SET revoked_at = clock_timestamp()"

    async def run() -> None:
        async with _gates(url, 1) as (gate,):
            key = (await gate.book.create(fresh("moss", "run", None, None)))["key"]
            assert gate.ring.find(key) is not None
            for each in (revoked, back):
                await asyncio.to_thread(postgres.sql, each, name_of(url))
            await _until(lambda: gate.ring.find(key) is None, gate)

    asyncio.run(run())


class Half(Keys):
    """Keys that can be changed, and be read while `is_there`."""

    def __init__(self) -> None:
        """Without a directory."""
        self.row = Kept("1" * 64, "moss", "run", None, 0.0, None)
        self.is_there = True
        self.reads = self.number = 0

    async def put(self, *_values: object) -> Kept:
        return self.row

    async def revoke(self, key_id: str) -> tuple[bool, bool]:
        return True, True

    async def version(self) -> int:
        return self.number

    async def since(self, known: Version) -> None:
        """The keys are to be read again."""

    async def all(self) -> tuple[Version, list[Kept]]:
        if not self.is_there:
            raise StoreBusy("keys: away", retry_after_s=1.0)
        self.reads += 1
        return Version(self.number), [self.row]


def test_change_that_is_made_is_answered_though_the_keys_cannot_be_read_then() -> None:
    async def run() -> None:
        kept, ring, gone = Half(), KeyRing(), list[None]()
        book = KeyBook(kept, ring, lambda: gone.append(None))
        await book.begin()
        assert ring.is_accepted("1" * 12)
        kept.is_there = False
        assert (await book.create(fresh("moss", "run", None, None)))["key"]
        assert await book.revoke("1" * 12)
        assert not ring.is_accepted("1" * 12)  # at once, here
        assert gone == [None]

    asyncio.run(run())


def test_keys_are_followed_after_a_defect_of_what_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[None] = []

    def tell() -> None:
        told.append(None)
        if len(told) == 1:
            raise RuntimeError("a defect")

    async def run() -> None:
        kept, ring = Half(), KeyRing()
        book = KeyBook(kept, ring, tell)
        await book.begin()
        watching = asyncio.get_running_loop().create_task(book.watch())
        kept.row, kept.number = replace(kept.row, revoked_at=1.0), 1
        await asyncio.to_thread(wait_until, lambda: len(told) == 2, "it is told again")
        assert not watching.done()
        assert not ring.is_accepted("1" * 12)
        watching.cancel()

    asyncio.run(run())
    assert "a defect" in caplog.text


def test_clock_that_was_set_back_keeps_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        kept, ring = Half(), KeyRing()
        kept.row = replace(kept.row, expires_at=60.0, left_s=60.0)
        book = KeyBook(kept, ring, lambda: None)
        await book.begin()
        now_s = time.time
        monkeypatch.setattr(time, "time", lambda: now_s() - 3600)
        kept.row = replace(kept.row, left_s=-1.0)  # a minute later
        await _until(lambda: not ring.is_accepted("1" * 12), book)

    asyncio.run(run())


@pytest.mark.timeout(60)
def test_directory_that_is_away_takes_no_key_and_no_change(
    own: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    url = directory(own)

    async def run() -> None:
        async with _gates(url, 1) as (gate,):
            made = await gate.book.create(fresh("moss", "run", None, None))
            await asyncio.to_thread(own.stop, signal.SIGQUIT)
            try:
                watching = asyncio.get_running_loop().create_task(gate.book.watch())
                with pytest.raises(StoreBusy):
                    await gate.book.create(fresh("moss", "run", None, None))
                with pytest.raises(StoreBusy):
                    await gate.book.revoke(made["id"])
                looked = partial(wait_until, lambda: "of late is not known" in caplog.text)
                await asyncio.to_thread(looked, "it has looked in vain")
                assert gate.ring.find(made["key"]) is not None
                assert not watching.done()
                watching.cancel()
            finally:
                own.start()
            await gate.commits.wait_there()
            assert await gate.book.revoke(made["id"])

    asyncio.run(run())
