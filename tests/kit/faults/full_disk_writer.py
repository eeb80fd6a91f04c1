"""Fills the disk under an open store and says what it saw, as JSON on its output.

Arguments: `tmpfs` (in a mount namespace of our own) or `file limit`, and a folder, where a copy
of the database is left as `after`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

from cellwall.linux.syscalls import mounts
from cellwall.model.errors import CellwallError
from cellwall.store.records.changes import Accept, Change, Ended, Started
from cellwall.store.store import Store
from kit.stores import ended, execution, opened

_BYTES = 2 * 1024 * 1024
_END_BYTES = 64 * 1024


def shrink(way: str, folder: Path) -> None:
    """Make the disk small."""
    folder.mkdir()
    if way == "tmpfs":
        mounts.mount("small", str(folder), "tmpfs", 0, f"size={_BYTES}")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_BYTES, resource.RLIM_INFINITY))


def make_room(way: str, folder: Path) -> None:
    """Let it be larger again."""
    if way == "tmpfs":
        # Not mount(8): it repeats the owner's id, which means nothing in here unless it is root.
        mounts.mount("small", str(folder), None, mounts.MS_REMOUNT, f"size={4 * _BYTES}")
    else:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


async def attempt(store: Store, *changes: Change) -> str:
    """Return how it went, in one word."""
    try:
        await store.write(*changes)
    except CellwallError as error:
        return type(error).__name__
    return "written"


async def fill(store: Store, told: list[str]) -> str:
    """Accept until it is refused; return how."""
    size = _END_BYTES
    for number in range(2, 100_000):
        answer = await attempt(store, Accept(execution(number, body=bytes(size))))
        if answer == "written":
            told.append(f"ex{number}")
        elif size > 100:
            size //= 4
        else:
            return answer
    raise AssertionError


async def main(way: str, folder: Path) -> dict[str, Any]:
    """Tell the story."""
    disk = folder / "small"
    shrink(way, disk)
    told = ["ex1"]
    async with opened(f"sqlite:///{disk}/cellwall.db") as store:
        await store.write(Accept(execution(1)), Started("ex1", 1.0))
        seen: dict[str, Any] = {"accept when full": await fill(store, told)}
        seen["before"] = len(told)
        # A short one may find room in pages that an acceptance, with its indexes, does not.
        large = Ended("ex1", 200.0, {"verdict": "ok", "stdout": "x" * _END_BYTES})
        seen["end when full"] = await attempt(store, large)
        row = await store.execution("ex1")
        seen["read when full"] = row.state if row else None
        make_room(way, disk)
        seen["end with space"] = await attempt(store, ended(1))
        last = Accept(execution(99_999_999))
        seen["accept with space"] = await attempt(store, last)
        told.append("ex99999999")
    shutil.copytree(disk, folder / "after")
    return {**seen, "told": told}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
