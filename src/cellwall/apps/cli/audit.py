"""`cellwall audit`: check the chain of audit records, look at it, take it elsewhere.

Works on the store, whether a server runs on it or not, and on exported files alone. Not the check
itself (`server.audit.check`). Called by `main`. Invariants: nothing here changes a record; `verify`
ends with 0 only if all it looked at is whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from cellwall.apps.cli.console.terminal import visible
from cellwall.model.errors import Conflict, NotFound, UsageError

if TYPE_CHECKING:
    from cellwall.server.audit.check import Anchor, Report
    from cellwall.store.records.rows import AuditRow
    from cellwall.store.store import Store

_PAGE = 1000
_SHOWN = ("tenant", "actor", "object", "decision", "result", "runtime", "details")

app = typer.Typer(
    name="audit",
    help="Check, show and export the audit.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Of the store; default: the state directory's."),
]


@app.command(short_help="Check that no record was changed.")
def verify(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Exported files, oldest first, not the store.")
    ] = None,
    store: _StoreOption = None,
    anchor: Annotated[
        list[Path] | None,
        typer.Option("--anchor", help="File with anchors, or a system log that has them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the chain and its anchors; 1 if a record was changed, removed or moved.

    Each fault is named by its record, and what comes behind it is still checked. Without anchors
    it cannot be told whether records were cut off at the end.
    """
    from cellwall.server.audit.check import check

    anchors = [each for path in anchor or () for each in _anchors(path)]
    report = check(_in_files(files), anchors) if files else asyncio.run(_checked(store, anchors))
    if as_json:
        typer.echo(json.dumps(_as_json(report)))
    else:
        _print(report, len(anchors))
    raise typer.Exit(0 if report.is_whole else 1)


@app.command(short_help="Show the latest records.")
def tail(
    count: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000)] = 20,
    store: _StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Show the latest records, oldest first."""
    for row in asyncio.run(_latest(store, count)):
        if as_json:
            typer.echo(row.record.decode("ascii", "replace"))
        else:
            typer.echo(_line(row))


@app.command(short_help="Write records to a file.")
def export(
    to: Annotated[Path | None, typer.Option("--to", help="File; default: standard output.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Number of the last record not wanted.")] = 0,
    rotate: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Continue the files of a folder with one more."),
    ] = None,
    store: _StoreOption = None,
) -> None:
    """Write records as JSON lines, each with its hash; `verify` reads them without a store.

    With --rotate the new file's first record links to the last one of the file before it.
    """
    if rotate is None:
        count = asyncio.run(_export(store, after, to))
        name = "standard output" if to is None else str(to)
    else:
        if not rotate.is_dir():
            raise UsageError(
                f"audit: --rotate {rotate}: there is no such directory", remedy="make it first"
            )
        count, name = asyncio.run(_rotate(store, rotate, _last_in(rotate)))
    typer.echo(f"{count} records: {name}", err=True)


# -- reading -----------------------------------------------------------------------------------


def _url(given: str | None) -> str:
    """Return the store's address; `NotFound` if there is no file where it says."""
    from cellwall.engine.templates.store import state_dir

    url = given or f"sqlite:///{state_dir().absolute() / 'server' / 'cellwall.db'}"
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).exists():
        raise NotFound(f"audit: there is no store at {path}", remedy="name it with --store")
    return url


async def _rows(store: Store, after: int) -> AsyncIterator[AuditRow]:
    while rows := await store.audit(after, _PAGE):
        for row in rows:
            yield row
        after = rows[-1].seq


async def _checked(given: str | None, anchors: list[Anchor]) -> Report:
    from cellwall.apps.store_place import open_store
    from cellwall.server.audit.check import Checker

    checker = Checker(anchors, whole=True)
    store = await open_store(_url(given))
    try:
        async for row in _rows(store, 0):
            checker.take(row)
    finally:
        await store.aclose()
    return checker.finish()


async def _latest(given: str | None, count: int) -> list[AuditRow]:
    from cellwall.apps.store_place import open_store

    store = await open_store(_url(given))
    try:
        head = await store.audit_head()
        after = 0 if head is None else max(0, head.seq - count)
        return [row async for row in _rows(store, after)]
    finally:
        await store.aclose()


def _in_files(paths: list[Path]) -> Iterator[AuditRow]:
    from cellwall.server.audit.check import imported

    number = 0
    for path in paths:
        with _opened(path) as file:
            for line in file:
                row = imported(line.rstrip("\n"), number + 1)
                number = row.seq
                yield row


def _anchors(path: Path) -> list[Anchor]:
    from cellwall.server.audit.check import anchors_in

    with _opened(path) as file:
        return list(anchors_in(file))


def _opened(path: Path) -> IO[str]:
    try:
        return path.open(encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise UsageError(
            f"audit: read {path}: {error.strerror}", remedy="name a readable file"
        ) from None


# -- writing -----------------------------------------------------------------------------------


async def _export(given: str | None, after: int, to: Path | None) -> int:
    from cellwall.apps.store_place import open_store

    store = await open_store(_url(given))
    try:
        return await _write(store, after, to)
    finally:
        await store.aclose()


async def _write(store: Store, after: int, to: Path | None) -> int:
    """Write the records behind number `after`; they are on disk when this returns."""
    from cellwall.server.audit.check import exported

    count = 0
    out = sys.stdout if to is None else _created(to)
    try:
        async for row in _rows(store, after):
            out.write(exported(row) + "\n")
            count += 1
        out.flush()
        if to is not None:
            os.fsync(out.fileno())
    finally:
        if to is not None:
            out.close()
    return count


def _created(path: Path) -> IO[str]:
    """Return a new file of ours alone; one that is there stays as it is."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"audit: write {path}: {error.strerror}", remedy="name a file that is not there yet"
        ) from None
    return open(fd, "w", encoding="ascii")


def _last_in(folder: Path) -> AuditRow | None:
    files = sorted(folder.glob("audit-*.jsonl"))
    return list(_in_files([files[-1]]))[-1] if files else None


async def _rotate(given: str | None, folder: Path, last: AuditRow | None) -> tuple[int, str]:
    """Write what is behind `last`, the folder's latest record, into a new file.

    Then the server may let go of it (`audit_retention_s`).
    """
    from cellwall.apps.store_place import open_store
    from cellwall.server.audit.retention import EXPORTED
    from cellwall.store.records.changes import PutFact

    store = await open_store(_url(given))
    try:
        if last is not None:
            await _check_follows(store, last, folder)
        after = last.seq if last else 0
        first = await store.audit(after, 1)
        if not first:
            return 0, "nothing new"
        name = folder / f"audit-{first[0].seq:012d}.jsonl"
        count = await _write_whole(store, after, name)
        await store.write(PutFact(EXPORTED, str(first[0].seq + count - 1)))
        return count, str(name)
    finally:
        await store.aclose()


async def _write_whole(store: Store, after: int, name: Path) -> int:
    """Write a file that is there whole or not at all, also after a crash."""
    part = name.with_suffix(".part")
    part.unlink(missing_ok=True)
    count = await _write(store, after, part)
    part.rename(name)
    folder = os.open(name.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return count


async def _check_follows(store: Store, last: AuditRow, folder: Path) -> None:
    """Raise `Conflict` unless the store's records go on where the folder's files end."""
    from cellwall.server.audit.chain import read

    found = await store.audit(last.seq - 1, 1)
    if found and found[0].seq == last.seq:
        follows = found[0].hash == last.hash
    else:  # it was trimmed, and the next one is there
        follows = bool(found) and found[0].seq == last.seq + 1
        follows = follows and read(found[0].record).prev == last.hash
    if not follows:
        raise Conflict(
            f"audit: record {last.seq}, the last one in {folder}, is not the store's: a backup was "
            "restored, or the folder is another store's",
            remedy="keep these files, and name an empty folder",
        )


# -- showing -----------------------------------------------------------------------------------


def _as_json(report: Report) -> dict[str, object]:
    return {
        "whole": report.is_whole,
        "records": report.records,
        "first": report.first_seq,
        "last": report.last_seq,
        "head": report.last_hash.hex(),
        "anchors": report.anchors,
        "removed": report.removed,
        "faults": [{"record": fault.seq, "what": fault.what} for fault in report.faults],
    }


def _print(report: Report, anchors: int) -> None:
    for fault in report.faults:
        typer.echo(f"record {fault.seq}: {visible(fault.what)}")
    what = "whole" if report.is_whole else f"broken, first at record {report.faults[0].seq}"
    span = f"{report.first_seq} to {report.last_seq}" if report.records else "none"
    typer.echo(f"{report.records} records ({span}): {what}")
    if report.cut is not None and report.removed:
        when = visible(report.cut.time)
        typer.echo(f"records 1 to {report.removed} were exported, and removed at {when}")
    if anchors:
        typer.echo(f"{report.anchors} of {anchors} anchors agree")
    else:
        typer.echo("no anchors: records that were cut off at the end would not be missed")
    typer.echo(f"head {report.last_hash.hex()}")


def _line(row: AuditRow) -> str:
    from cellwall.server.audit.chain import Malformed, read

    try:
        values = read(row.record).values
    except Malformed as error:
        return f"{row.seq} {error}"
    rest = [f"{name}={values[name]}" for name in _SHOWN if values[name]]
    return visible(" ".join([str(row.seq), values["time"], values["action"], *rest]))
