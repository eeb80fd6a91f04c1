"""The compile cache: whole entries or none, bounded, each tenant's own."""

from __future__ import annotations

import dataclasses
import os
import stat
import time
from pathlib import Path

import pytest

from cellwall.engine.programs.compile_cache import CompileCache, Product, key_of
from cellwall.runtimes.channel.sealed_files import SealedFile

PRODUCT = Product((("program", b"\x7fELF" * 1000), ("a/b.class", b"")), "out\n", "a warning ü\n")
KEY = key_of({"source": "x"})
DAY_S = 86_400.0


def _cache(folder: Path, most_bytes: int = 1 << 20, most_age_s: float = DAY_S) -> CompileCache:
    return CompileCache(folder / "compiled", most_bytes, most_age_s)


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_kept_is_found_by_another_cache(tmp_path: Path) -> None:
    _cache(tmp_path).keep("alice", KEY, PRODUCT)
    assert _cache(tmp_path).find("alice", KEY) == PRODUCT


def test_what_was_not_kept_is_not_found(tmp_path: Path) -> None:
    assert _cache(tmp_path).find("alice", KEY) is None


def test_tenants_do_not_share(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    cache.keep("alice", KEY, PRODUCT)
    assert cache.find("bob", KEY) is None
    assert cache.find("../alice", KEY) is None


def test_nobody_else_on_the_host_can_read_it(tmp_path: Path) -> None:
    _cache(tmp_path).keep("alice", KEY, PRODUCT)
    (entry,) = _entries(tmp_path)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    for folder in (entry.parent, entry.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_long_warnings_are_kept_with_what_was_made(tmp_path: Path) -> None:
    wordy = dataclasses.replace(PRODUCT, stderr="é" * 500_000)
    _cache(tmp_path, 1 << 26).keep("alice", KEY, wordy)
    assert _cache(tmp_path, 1 << 26).find("alice", KEY) == wordy


@pytest.mark.parametrize("damage", ["cut", "changed", "longer", "empty", "no header"])
def test_damaged_entry_is_a_miss_and_removed(tmp_path: Path, damage: str) -> None:
    cache = _cache(tmp_path)
    cache.keep("alice", KEY, PRODUCT)
    (entry,) = _entries(tmp_path)
    data = entry.read_bytes()
    cache = _cache(tmp_path)  # the other one has it in memory
    entry.write_bytes(
        {
            "cut": data[:-1],
            "changed": data[:50] + bytes([data[50] ^ 1]) + data[51:],
            "longer": data + b"x",
            "empty": b"",
            "no header": data[:32],
        }[damage]
    )
    assert cache.find("alice", KEY) is None
    assert _entries(tmp_path) == []


def test_old_entry_is_a_miss(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    cache.keep("alice", KEY, PRODUCT)
    (entry,) = _entries(tmp_path)
    os.utime(entry, (time.time() - 2 * DAY_S,) * 2)
    assert cache.find("alice", KEY) is None


def test_use_makes_an_entry_young(tmp_path: Path) -> None:
    cache = _cache(tmp_path)
    cache.keep("alice", KEY, PRODUCT)
    (entry,) = _entries(tmp_path)
    os.utime(entry, (time.time() - DAY_S / 2,) * 2)
    assert cache.find("alice", KEY) is not None
    assert time.time() - entry.stat().st_mtime < DAY_S / 4


def test_eviction_takes_the_oldest_of_who_has_most(tmp_path: Path) -> None:
    cache = _cache(tmp_path, most_bytes=20_000)
    keys = [key_of({"n": n}) for n in range(6)]
    for age, key in enumerate(keys):
        tenant = "bob" if age == 0 else "alice"
        cache.keep(tenant, key, PRODUCT)
        newest = max(_entries(tmp_path), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (time.time() - 1000 + age,) * 2)
    assert cache.trim() == 2
    assert [cache.find("alice", key) is not None for key in keys[1:]] == [False] * 2 + [True] * 3
    assert cache.find("bob", keys[0]) is not None  # older than all of alice's


LARGE = Product((("program", b"\x7fELF" * 100_000),), "", "")


def test_large_file_is_kept_as_a_file_in_memory(tmp_path: Path) -> None:
    kept = _cache(tmp_path, 1 << 26).keep("alice", KEY, LARGE)
    found = _cache(tmp_path, 1 << 26).find("alice", KEY)
    assert found is not None
    for product in (kept, found):
        ((name, content),) = product.files
        assert isinstance(content, SealedFile)
        assert (name, bytes(content)) == LARGE.files[0]


def test_what_was_used_lately_is_not_read_again(tmp_path: Path) -> None:
    cache = _cache(tmp_path, 1 << 26)
    kept = cache.keep("alice", KEY, LARGE)
    (entry,) = _entries(tmp_path)
    entry.write_bytes(b"")
    assert cache.find("alice", KEY) is kept
    assert _cache(tmp_path, 1 << 26).find("alice", KEY) is None


@pytest.mark.parametrize("way", ["removed", "old"])
def test_what_the_disk_has_no_more_is_not_in_memory(tmp_path: Path, way: str) -> None:
    cache = _cache(tmp_path)
    cache.keep("alice", KEY, PRODUCT)
    (entry,) = _entries(tmp_path)
    if way == "removed":
        entry.unlink()
    else:
        os.utime(entry, (time.time() - 2 * DAY_S,) * 2)
    assert cache.find("alice", KEY) is None
    cache.keep("alice", KEY, PRODUCT)
    assert cache.find("alice", KEY) is not None


def test_the_latest_are_in_memory(tmp_path: Path) -> None:
    """A quarter of the whole bound, of which two have room."""
    cache = _cache(tmp_path, most_bytes=4 * 1_000_000)
    keys = [key_of({"n": n}) for n in range(3)]
    kept = [cache.keep("alice", key, LARGE) for key in keys[:2]]
    assert cache.find("alice", keys[0]) is kept[0]
    kept.append(cache.keep("alice", keys[2], LARGE))
    same = [cache.find("alice", keys[n]) is kept[n] for n in (2, 0, 1)]
    assert same == [True, True, False]


def test_cache_of_no_size_keeps_nothing(tmp_path: Path) -> None:
    cache = _cache(tmp_path, most_bytes=0)
    cache.keep("alice", KEY, PRODUCT)
    assert cache.find("alice", KEY) is None
    assert not (tmp_path / "compiled").exists()


def test_cache_that_cannot_write_is_only_slow(tmp_path: Path) -> None:
    (tmp_path / "compiled").write_text("in the way", encoding="utf-8")
    cache = _cache(tmp_path)
    cache.keep("alice", KEY, PRODUCT)
    assert cache.find("alice", KEY) is None


def test_key_depends_on_every_part() -> None:
    parts = {"language": "c", "options": ["-O2"], "sources": [["main.c", "0"]]}
    keys = {key_of(parts), *(key_of({**parts, name: []}) for name in parts)}
    assert len(keys) == 4
