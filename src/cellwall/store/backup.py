"""Backup of a running SQLite store, and its restoration.

Called by `apps.cli.backup`. PostgreSQL has tools of its own. The invariants: a copy is of one
moment, checked before it has its name, and readable by its owner alone; an execution that waited in
a copy may have run since, so no execution of a restored store ever runs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from cellwall.model.errors import NotFound, UsageError
from cellwall.store.journal.file import is_held
from cellwall.store.records.errors import StoreBroken
from cellwall.store.sqlite.loss_guard import journal_of, locked

_PAGES = 1000
"""Pages copied at once; writers get their turn in between."""
_OURS = {"alembic_version", "executions", "audit", "keys", "facts"}


def save(store: Path, target: Path) -> int:
    """Copy the database `store` to `target`, also while it is written to; return the copy's bytes.

    Raises `NotFound` without a store, `UsageError` if `target` exists or cannot be written,
    `StoreBroken` if the copy is damaged; then there is no `target`.
    """
    if not store.is_file():
        raise NotFound(f"backup: there is no store at {store}", remedy="name the state directory")
    if target.exists():
        raise UsageError(f"backup: {target} is there already", remedy="name a new file")
    with _draft(target) as draft:
        _copy(store, draft)
        _check(draft, store)
    return target.stat().st_size


def is_unfinished(store: Path) -> bool:
    """Report whether a server was killed, so that its journal may have what the database lacks."""
    if not store.is_file() or is_held(journal_of(store)):
        return False
    with (
        contextlib.suppress(sqlite3.DatabaseError),
        contextlib.closing(_opened(store, "ro")) as database,
    ):
        mark = database.execute("SELECT value FROM facts WHERE name = 'journal_mark'").fetchone()
        return bool(mark == ("open",))
    return False


def restore(copy: Path, store: Path) -> Path | None:
    """Put `copy` in the place of `store`; return the new path of the replaced database, or None.

    No process may have `store` open. An execution that waited in the copy counts as started: the
    next server reports it as `interrupted`. Raises `UsageError` or `StoreBroken` for a copy that is
    not cellwall's or is damaged; then everything is as it was.
    """
    if not copy.is_file():
        raise UsageError(f"restore: there is no file {copy}", remedy="name a backup")
    store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replaced = _aside(store)
    with _draft(store, before=replaced) as draft:
        _copy(copy, draft)
        _check(draft, copy)
        _start_what_waited(draft)
        _forget_journal(draft)
    with locked(store) as guard:
        guard.note("closed")  # whatever it was before: the copy is whole in its one file
    return replaced


def _check(path: Path, origin: Path) -> None:
    """Raise `UsageError` for a file that is no store, `StoreBroken` for a damaged one."""
    try:
        with contextlib.closing(_opened(path)) as database:
            found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not {str(name) for (name,) in found} >= _OURS:
                raise UsageError(
                    f"backup: {origin} holds no store of cellwall's", remedy="name a backup of one"
                )
            problems = [str(line) for (line,) in database.execute("PRAGMA integrity_check(3)")]
    except sqlite3.DatabaseError as error:
        raise UsageError(
            f"backup: {origin} is no database that can be read: {error}", remedy="name a backup"
        ) from None
    if problems != ["ok"]:
        raise StoreBroken(
            f"backup: {origin} is damaged: {'; '.join(problems)}", remedy="take an older backup"
        )


def _opened(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Return a connection; a missing file is an error, never a new empty database.

    With mode `ro` the write-ahead log is left as it is when the connection is closed.
    """
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=30)


def _copy(source: Path, target: Path) -> None:
    try:
        with (
            contextlib.closing(_opened(source)) as reader,
            contextlib.closing(_opened(target)) as writer,
        ):
            reader.backup(writer, pages=_PAGES)
            writer.execute("PRAGMA journal_mode=DELETE")  # one file, with nothing beside it
    except sqlite3.DatabaseError as error:
        raise UsageError(
            f"backup: copy {source} to {target}: {error}",
            remedy="name a database that can be read, and a place with room",
        ) from None


@contextlib.contextmanager
def _draft(target: Path, before: Path | None = None) -> Iterator[Path]:
    """Give a new file for its owner alone; at the end of the block it becomes `target`, durably.

    The previous file `target` is kept as `before`.
    """
    draft = target.with_name(f"{target.name}.{os.getpid()}.draft")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        raise UsageError(
            f"backup: write {draft}: {error.strerror}", remedy="name a folder you may write"
        ) from None
    try:
        yield draft
        _synchronise(draft)
        if before is not None:
            _keep(target, before)
        draft.replace(target)
        _synchronise(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def _aside(store: Path) -> Path | None:
    """Return a free name beside `store` for the current database; None if there is none."""
    if not store.exists():
        return None
    names = (store.with_name(f"{store.name}.before-{number}") for number in range(1, 10_000))
    return next(name for name in names if not name.exists())


def _keep(store: Path, aside: Path) -> None:
    """Give a database a second name, whole in one file, so that the first can be taken from it.

    A damaged one, perhaps the reason for the restoration, keeps its log beside it.
    """
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(_opened(store)) as database:
        database.execute("PRAGMA journal_mode=DELETE")
    for suffix in ("-wal", "-shm", "-ahead"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{store}{suffix}", f"{aside}{suffix}")
    os.link(store, aside)


def _forget_journal(path: Path) -> None:
    """Delete the facts about a journal, which was written for another database."""
    with contextlib.closing(_opened(path)) as database, database:
        database.execute("DELETE FROM facts WHERE name LIKE 'journal%'")


def _start_what_waited(path: Path) -> None:
    with contextlib.closing(_opened(path)) as database, database:
        database.execute(
            "UPDATE executions SET state = 'running', started_at = created_at, body = NULL "
            "WHERE state = 'queued'"
        )


def _synchronise(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
