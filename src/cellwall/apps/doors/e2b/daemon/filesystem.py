"""Filesystem service: what lies where, and how it is made, moved and removed."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon.connect import messages
from cellwall.apps.doors.e2b.daemon.connect.connect_codec import ConnectError, invalid
from cellwall.apps.doors.e2b.daemon.entries import described
from cellwall.apps.doors.e2b.daemon.users import named, users
from cellwall.model.errors import FileError

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.apps.doors.e2b.daemon.users import Account, Users
    from cellwall.apps.doors.e2b.seat import Seat
    from cellwall.client.files import Files
    from cellwall.client.sandbox import AsyncSandbox
    from cellwall.model.files import FileEntry

_MOST_DEPTH = 64
_MOST_ENTRIES = 10_000
_CHOWN_S = 30.0


async def stat(seat: Seat, asked: Value) -> Value:
    """Answer Stat."""
    place = await _place(seat, asked.get("path", ""))
    return await place.entry()


async def list_dir(seat: Seat, asked: Value) -> Value:
    """Answer ListDir: entries before their children."""
    place = await _place(seat, asked.get("path", ""))
    depth = asked.get("depth", 0) or 1
    if depth > _MOST_DEPTH:
        raise invalid(f"depth: {depth} is above {_MOST_DEPTH}")
    try:
        listing = await place.files.listing(place.path, depth=depth, limit=_MOST_ENTRIES)
    except FileError as error:
        if error.reason == "not_directory":
            raise invalid(f"path is not a directory: {place.path}") from None
        raise _missing(error, place.path) from None
    if listing.is_truncated:
        raise ConnectError(
            "resource_exhausted",
            f"{place.path}: more entries than one answer may have; list with less depth",
        )
    return {"entries": [await place.shown(each) for each in listing.entries]}


async def make_dir(seat: Seat, asked: Value) -> Value:
    """Answer MakeDir: parents are made, too."""
    place = await _place(seat, asked.get("path", ""))
    there = await _looked_up(place.files, place.path)
    if there is not None:
        if (await place.shown(there))["type"] == messages.DIRECTORY:
            raise ConnectError("already_exists", f"directory already exists: {place.path}")
        raise invalid(f"path already exists but it is not a directory: {place.path}")
    await _make(seat.sandbox, place.path, place.who)
    return await place.entry()


async def move(seat: Seat, asked: Value) -> Value:
    """Answer Move: the parents of the destination are made."""
    _check_given(asked, "source", "destination")
    source = await _place(seat, asked["source"])
    target = replace(source, path=source.who.path(asked["destination"]))
    await _found(source.files, source.path)
    parent = posixpath.dirname(target.path)
    if await _looked_up(target.files, parent) is None:
        await _make(seat.sandbox, parent, target.who)
    await target.files.move(source.path, target.path)
    return await target.entry()


async def remove(seat: Seat, asked: Value) -> Value:
    """Answer Remove: a whole tree; what is not there is no error."""
    _check_given(asked, "path")
    place = await _place(seat, asked.get("path", ""))
    try:
        await place.files.remove(place.path, recursive=True)
    except FileError as error:
        if error.reason not in ("not_found", "not_directory"):
            raise
    return {}


def _check_given(asked: Value, *fields: str) -> None:
    """Refuse an empty path where it would mean that the whole home goes."""
    for field in fields:
        if not asked.get(field):
            raise invalid(f"{field}: it is missing")


@dataclass(frozen=True, slots=True)
class _Place:
    """What a request is about."""

    files: Files
    path: str
    who: Account
    users: Users

    async def entry(self) -> Value:
        """Return the answer that describes it."""
        return {"entry": await self.shown(await _found(self.files, self.path))}

    async def shown(self, entry: FileEntry) -> Value:
        """Return the description of an entry."""
        return await described(self.files, entry, self.users)


async def _place(seat: Seat, path: str) -> _Place:
    known = await users(seat)
    who = known.account(named(seat.request.headers))
    return _Place(seat.sandbox.files, who.path(path), who, known)


async def _make(sandbox: AsyncSandbox, path: str, who: Account) -> None:
    """Make a directory and its parents, and give them to the user who asked."""
    top = await first_missing(sandbox.files, path, who)
    await sandbox.files.mkdir(path, parents=True)
    await give(sandbox, top, who, is_tree=top != path)


async def first_missing(files: Files, path: str, who: Account) -> str:
    """Return the topmost part of a path that is not there, for `give` once it is made.

    The path itself if its parents are there, or belong to that user anyway.
    """
    top = path
    while not who.is_own and (parent := posixpath.dirname(top)) != top:
        if await files.exists(parent):
            break
        top = parent
    return top


async def give(sandbox: AsyncSandbox, path: str, who: Account, *, is_tree: bool = False) -> None:
    """Give what was made to the user who asked, if the sandbox's own is another."""
    if who.is_own:
        return
    owner = f"{who.uid}:{who.gid}"
    how = "-hR" if is_tree else "-h"
    result = await sandbox.commands.run(["chown", how, owner, "--", path], timeout=_CHOWN_S)
    if not result.ok:
        raise ConnectError("internal", f"{path}: it was made, but not given to {who.name!r}")


async def _looked_up(files: Files, path: str) -> FileEntry | None:
    try:
        return await files.stat(path)
    except FileError as error:
        if error.reason in ("not_found", "not_directory"):
            return None
        raise


async def _found(files: Files, path: str) -> FileEntry:
    try:
        return await files.stat(path)
    except FileError as error:
        raise _missing(error, path) from None


def _missing(error: FileError, path: str) -> Exception:
    if error.reason in ("not_found", "not_directory"):
        return ConnectError("not_found", f"file not found: {path}")
    return error
