"""Collection: read files, a folder or a call's value out of a sandbox after its program.

Everything goes through the guest, and all of it is hostile: names are checked before they are used
again, sizes and counts are bounded, JSON is strict. The invariant: no function waits for a guest
longer than `_MOST_S`, and an item that cannot be read becomes a note, never an error.
"""

from __future__ import annotations

import asyncio
import posixpath
from typing import TYPE_CHECKING, Any

from cellwall.engine.attempts.verdicts import DISPLAYS_MB, ONE_DISPLAY_MB
from cellwall.engine.parts.files import entries as entries_of
from cellwall.engine.parts.files import read_file
from cellwall.engine.policy.arguments import check_inner_path
from cellwall.model.errors import UsageError
from cellwall.model.files import FileEntry
from cellwall.model.outcome import LOST
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import ChannelLost, GuestRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox

_MOST_S = 30.0
_MOST_ENTRIES = 1000
_MOST_DEPTH = 64
_LONG_PATH_BYTES = 4096 - 256
"""Bytes of a folder's path above which a name in it may be too long for any system call."""
_MOST_NOTES = 8
_MOST_PICTURES = 64
_PNG = b"\x89PNG\r\n\x1a\n"
_RESULT_CAP_BYTES = 4 * 1024 * 1024
_MOST_BRACKETS = 250_000
"""Maximum number of brackets in a result: each opens a list or an object, which takes up to 230
bytes, or is in a text."""


async def files(
    live: ClaimedSandbox, paths: Sequence[str], folder: str | None, room: int
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the named files and all of `folder`, at most `room` bytes, and notes on the rest."""
    found: dict[str, bytes] = {}
    notes: list[str] = []
    for path in paths:
        try:
            async with asyncio.timeout(_MOST_S):
                found[path] = await read_file(live, path, room)
            room -= len(found[path])
        except (GuestRefused, ChannelLost, TimeoutError) as error:
            notes.append(f"collect {path}: {error}")
    if folder is not None:
        try:
            there, lost = await tree(live, folder, room)
            found |= there
            notes += _told(lost)
        except GuestRefused as refusal:  # a folder that was never made loses nothing
            what = "artifacts " if refusal.reason == "not_found" else LOST
            notes.append(f"{what}{folder}: {refusal}")
        except FrameError as error:
            notes.append(f"{LOST}{folder}: {error}")
    return found, tuple(notes)


async def pictures(live: ClaimedSandbox, names: str) -> tuple[list[bytes], tuple[str, ...]]:
    """Return the PNG files called `names` (`%03d`, from 1) that may be shown, and notes.

    A file of such a name that is not a PNG is the program's own, and ends the series.
    """
    found: list[bytes] = []
    room = DISPLAYS_MB << 20
    for number in range(1, _MOST_PICTURES + 1):
        path = names % number
        try:
            async with asyncio.timeout(_MOST_S):
                data = await read_file(live, path, min(room, ONE_DISPLAY_MB << 20))
        except GuestRefused as refusal:
            if refusal.reason != "too_large":
                break
            return found, (f"not shown: {refusal}; collect {path}",)
        except (ChannelLost, TimeoutError):
            break
        if not data.startswith(_PNG):
            break
        room -= len(data)
        found.append(data)
    return found, ()


def _told(lost: list[str]) -> list[str]:
    told = [f"{LOST}{each}" for each in lost[:_MOST_NOTES]]
    more = len(lost) - len(told)
    return [*told, f"{LOST}{more} more"] if more else told


async def tree(live: ClaimedSandbox, folder: str, room: int) -> tuple[dict[str, bytes], list[str]]:
    """Return the regular files below `folder`, at most `room` bytes, and sentences on the others.

    A file's name is its path from the working directory; each file that could not be read has a
    sentence. Raises `GuestRefused` if `folder` itself cannot be listed, `FrameError` on a bad
    answer.
    """
    found: dict[str, bytes] = {}
    lost: list[str] = []
    try:
        async with asyncio.timeout(_MOST_S):
            for path, size in (await _listed(live, folder, lost)).items():
                try:
                    if size > room:
                        raise GuestRefused("too_large", f"it has more than {room} bytes")
                    found[path] = await read_file(live, path, room)
                    room -= len(found[path])
                except GuestRefused as refusal:
                    lost.append(f"{path}: {refusal}")
    except (ChannelLost, TimeoutError) as error:
        lost.append(f"the rest of {folder}: {str(error) or f'not within {_MOST_S:.0f} s'}")
    return found, lost


async def _listed(live: ClaimedSandbox, folder: str, lost: list[str]) -> dict[str, int]:
    """Return path and claimed size of the regular files below `folder`; add others to `lost`."""
    # The working directory depends on the runtime; a listing has whole paths.
    reply = await live.channel.request("file_stat", path=folder)
    top = entries_of([live.channel.take_apart(reply.body)])[0].path.rstrip("/")
    reply = await live.channel.request(
        "file_list", path=folder, depth=_MOST_DEPTH, limit=_MOST_ENTRIES
    )
    entries = live.channel.take_apart(reply.body, entries_of)
    if reply.header.get("truncated"):
        lost.append(f"{folder}: it holds more than the {len(entries)} entries listed")
    sizes: dict[str, int] = {}
    entered = {posixpath.dirname(entry.path) for entry in entries}
    for entry in entries:
        inner = entry.path.removeprefix(f"{top}/")
        path = _checked(inner if folder == "." else f"{folder}/{inner}")
        if entry.type == "file":
            sizes[path] = entry.size
        elif entry.type == "directory" and _may_hide(entry, inner, entry.path in entered):
            lost.append(f"{path}: what is below it")
    return sizes


def _may_hide(entry: FileEntry, inner: str, is_entered: bool) -> bool:
    """Report whether a folder may hold entries that a listing omits silently."""
    is_deepest = inner.count("/") == _MOST_DEPTH - 1
    is_closed = not is_entered and entry.mode & 0o500 != 0o500
    return is_deepest or is_closed or len(entry.path.encode()) > _LONG_PATH_BYTES


def _checked(path: str) -> str:
    try:
        return check_inner_path(path, "file_list")
    except UsageError as error:
        raise FrameError(f"file_list: {error}") from None


async def result(live: ClaimedSandbox, path: str, *, may_be_text: bool) -> tuple[Any, str]:
    """Return the JSON value that a program left in `path`, and why it is missing, if it is.

    `may_be_text`: content that is not JSON is the value itself, as a shell has only text.
    """
    try:
        async with asyncio.timeout(_MOST_S):
            data = await read_file(live, path, _RESULT_CAP_BYTES)
    except GuestRefused as refusal:
        return None, "" if refusal.reason == "not_found" else str(refusal)
    except (ChannelLost, TimeoutError) as error:
        return None, str(error)
    try:
        if data.count(b"[") + data.count(b"{") > _MOST_BRACKETS:
            raise FrameError(f"{path}: more than {_MOST_BRACKETS} lists and objects")
        return live.channel.take_apart(data), ""
    except FrameError as error:
        if may_be_text:
            return data.decode("utf-8", "replace").removesuffix("\n"), ""
        return None, str(error)
