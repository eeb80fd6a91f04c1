"""The power fails at any moment: what was promised is there, in whole transactions, and opens."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.store.journal import file as journal
from cellwall.store.records.errors import StoreBroken
from cellwall.store.records.rows import AuditRow
from cellwall.store.sqlite import file as sqlite_file
from cellwall.store.store import Store
from conftest import Require
from kit.faults.power_loss import Call, Disk, record
from kit.faults.power_loss_writer import BLOCKS, LOG_PAGES, sealed
from kit.places import TESTS
from kit.stores import opened

_ORDER = ["queued", "running", "ended"]
Image = dict[str, bytes]


def recorded(folder: Path, synchronous: str, way: str) -> list[Call]:
    state = folder / "state"
    state.mkdir()
    script = TESTS / "kit" / "faults" / "power_loss_writer.py"
    return record([str(script), f"{state}/cellwall.db", synchronous, way], state, folder / "trace")


def crashes(calls: list[Call], luck: random.Random) -> Iterator[tuple[int, Image, list[str]]]:
    """Yield every different (moment, what is on the disk, what had been promised)."""
    disk, told, seen = Disk(), list[str](), set[int]()
    for moment, call in enumerate(calls):
        if call.path.endswith("/told"):
            told += call.data.decode().split("\n")[:-1] if call.name == "write" else []
            continue
        disk.play(call)
        for chance in (None, luck):
            image = disk.image(chance)
            key = hash((tuple(sorted(image.items())), len(told)))
            if key not in seen:
                seen.add(key)
                yield moment, image, list(told)


def lay_out(image: Image, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path, content in image.items():
        if not path.endswith("-shm"):
            (folder / Path(path).name).write_bytes(content)


async def lost(image: Image, told: list[str], folder: Path) -> list[str]:
    """Put the image there, open it; return whose promises it does not keep."""
    lay_out(image, folder)
    promised = {number: state for state, number in map(str.split, told)}
    async with opened(f"sqlite:///{folder}/cellwall.db", sole=True, seal=sealed) as store:
        rows = await store.audit(0, 1000)
        check_chain(rows)
        records = {row.record for row in rows}
        return [n for n, state in promised.items() if not await is_kept(store, n, state, records)]


async def is_kept(store: Store, number: str, state: str, records: set[bytes]) -> bool:
    row = await store.execution(f"ex{number}")
    return (
        row is not None
        and _ORDER.index(row.state) >= _ORDER.index(state)
        and f"accept {number}".encode() in records
        and (row.state == "ended") == (f"end {number}".encode() in records)
    )


def check_chain(rows: list[AuditRow]) -> None:
    before = bytes(32)
    for number, row in enumerate(rows, 1):
        assert row.seq == number
        assert row.hash == hashlib.sha256(before + row.record).digest()
        before = row.hash


pytestmark = pytest.mark.timeout(300)  # hundreds of databases are opened, each with its syncs


@pytest.fixture
def folder(require: Require, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where it all happens: in memory if there is such a place, for the images are many."""
    monkeypatch.setattr(sqlite_file, "_LOG_PAGES", LOG_PAGES)
    monkeypatch.setattr(journal, "BLOCKS", BLOCKS)
    require("strace", shutil.which("strace") is not None, "run: apt-get install strace")
    memory = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="cellwall-", dir=memory if memory.is_dir() else None)
    yield Path(made)
    shutil.rmtree(made)


@pytest.mark.parametrize(("way", "promises"), [("plain", 24), ("journal", 18)])
def test_loss_of_power_at_any_moment_breaks_no_promise(
    folder: Path, way: str, promises: int
) -> None:
    calls = recorded(folder, "FULL", way)
    assert sum(call.name == "write" for call in calls) == promises
    is_in_journal = [call.path.endswith("-ahead") for call in calls if call.name == "pwrite64"]
    assert any(is_in_journal) == (way == "journal")

    async def run() -> int:
        count = 0
        for moment, image, told in crashes(calls, random.Random(7)):
            missing = await lost(image, told, folder / "after")
            assert missing == [], f"after call {moment}: {calls[moment].name}"
            count += 1
        return count

    assert asyncio.run(run()) > 120


@pytest.mark.parametrize("way", ["plain", "journal"])
def test_control_without_syncing_promises_are_broken(folder: Path, way: str) -> None:
    calls = recorded(folder, "OFF", way)

    async def run() -> bool:
        for _, image, told in crashes(calls, random.Random(7)):
            try:
                if await lost(image, told, folder / "after"):
                    return True
            except StoreBroken:
                return True
        return False

    assert asyncio.run(run())
