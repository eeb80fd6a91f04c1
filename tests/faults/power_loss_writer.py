"""Runs under `strace`: a store that is opened, written by several at once, closed and opened again.

Arguments: the database's path, and `FULL` or, for the control, `OFF`. What it was promised is
written to the file `told` beside it, so that the record has it in the right place.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from stores import chained, ended, execution

from cellwall.store import sqlite_file
from cellwall.store.changes import Accept, Started
from cellwall.store.store import Store


def told(handle: int, text: str) -> None:
    """Say that a change is durable."""
    os.write(handle, f"{text}\n".encode())


LOG_PAGES = 40
"""Of the log that is made at an open: few, because the disk fails after each call once."""


async def one(store: Store, handle: int, number: int) -> None:
    """Let one execution be accepted, and every other one run."""
    await store.write(Accept(execution(number)), chained(b"accept %d" % number))
    told(handle, f"queued {number}")
    if number % 2:
        await store.write(Started(f"ex{number}", 1.0))
        told(handle, f"running {number}")
        await store.write(ended(number), chained(b"end %d" % number))
        told(handle, f"ended {number}")


async def main(path: Path, handle: int) -> None:
    """Two lives of a store."""
    for first in (1, 7):
        store = await Store.open(f"sqlite:///{path}")
        for number in range(first, first + 2):
            await one(store, handle, number)
        await asyncio.gather(*(one(store, handle, n) for n in range(first + 2, first + 6)))
        await store.aclose()


if __name__ == "__main__":
    sqlite_file._LOG_PAGES = LOG_PAGES
    sqlite_file._PRAGMAS = tuple(
        pragma.replace("synchronous=FULL", f"synchronous={sys.argv[2]}")
        for pragma in sqlite_file._PRAGMAS
    )
    file = Path(sys.argv[1])
    asyncio.run(main(file, os.open(file.with_name("told"), os.O_CREAT | os.O_WRONLY, 0o600)))
