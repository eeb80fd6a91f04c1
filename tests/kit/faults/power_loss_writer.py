"""Runs under `strace`: a store that is opened, written by several at once, closed and opened again.

Arguments: the database's path, `FULL` or, for the control, `OFF`, and `journal` or `plain`. What
was promised is written to the file `told` beside it, so that the record has it in the right place.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cellwall.store.journal import file as journal
from cellwall.store.records.changes import Accept, AppendAudit, Started
from cellwall.store.sqlite import file as sqlite_file
from cellwall.store.store import Store
from kit.stores import chained, ended, execution


def told(handle: int, text: str) -> None:
    """Say that a change is durable."""
    os.write(handle, f"{text}\n".encode())


LOG_PAGES = 40
"""Of the log that is made at an open: few, because the disk fails after each call once."""


BLOCKS = 24
"""Of the journal: few, for the same reason."""


def sealed(words: Sequence[Any]) -> Any:
    """Make a record again that was in the journal."""
    return chained(str(words[0]).encode()).make


def said(text: str) -> AppendAudit:
    """Return a record that may go through the journal."""
    return AppendAudit(sealed([text]), (text,))


async def at_once(store: Store, handle: int, number: int) -> None:
    """Let one execution be accepted and run, and every other one end."""
    row = execution(number, state="running", body=None, started_at=1.0)
    await store.write(Accept(row), said(f"accept {number}"))
    told(handle, f"running {number}")
    if number % 2:
        await store.write(ended(number), said(f"end {number}"))
        told(handle, f"ended {number}")


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


async def serving(path: Path, handle: int) -> None:
    """Two lives of a server's store, with a journal; some of it waits for the database."""
    for first in (1, 7):
        store = await Store.open(f"sqlite:///{path}", sole=True, seal=sealed)
        for number in range(first, first + 3):
            await at_once(store, handle, number)
        await one(store, handle, first + 3)
        for number in range(first + 4, first + 6):
            await at_once(store, handle, number)
        await store.aclose()


if __name__ == "__main__":
    sqlite_file._LOG_PAGES = LOG_PAGES
    sqlite_file._PRAGMAS = tuple(
        pragma.replace("synchronous=FULL", f"synchronous={sys.argv[2]}")
        for pragma in sqlite_file._PRAGMAS
    )
    journal.BLOCKS = BLOCKS
    if sys.argv[2] == "OFF":
        setattr(os, "fdatasync", lambda _: None)  # noqa: B010 - typed as taking it by name
    file = Path(sys.argv[1])
    life = serving if sys.argv[3] == "journal" else main
    asyncio.run(life(file, os.open(file.with_name("told"), os.O_CREAT | os.O_WRONLY, 0o600)))
