"""What comes out of a sandbox after its program: files, a folder, the value of a call.

Everything goes through the guest, and all of it is hostile: names are checked before they are
used again, sizes and counts are bounded, JSON is strict. The invariant: nothing here waits for a
guest longer than `_MOST_S`, and what cannot be had becomes a sentence, never an error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cellwall.engine.files import read_file
from cellwall.engine.requests import check_inner_path
from cellwall.model.errors import UsageError
from cellwall.model.files import FileEntry
from cellwall.runtimes.answers import ChannelLost, GuestRefused
from cellwall.runtimes.frames import FrameError, strict_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.engine.live import Live

_MOST_S = 30.0
_MOST_FILES = 1000
_MOST_DEPTH = 16
_RESULT_CAP_BYTES = 4 * 1024 * 1024


async def files(
    live: Live, paths: Sequence[str], folder: str | None, room: int
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the named files and all of `folder`, at most `room` bytes, and what was not had."""
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
            found |= await tree(live, folder, room)
        except (GuestRefused, ChannelLost, FrameError, TimeoutError) as error:
            notes.append(f"artifacts {folder}: {error}")
    return found, tuple(notes)


async def tree(live: Live, folder: str, room: int) -> dict[str, bytes]:
    """Return every regular file below `folder`, by its path from the working directory.

    Raises `GuestRefused` above `room` bytes or a thousand files, `FrameError` on a bad answer.
    """
    async with asyncio.timeout(_MOST_S):
        reply = await live.channel.request(
            "file_list", path=folder, depth=_MOST_DEPTH, limit=_MOST_FILES
        )
        if reply.header.get("truncated"):
            raise GuestRefused("too_large", f"{folder}: it holds more than {_MOST_FILES} files")
        found: dict[str, bytes] = {}
        for path in _regular(strict_json(reply.body), folder):
            found[path] = await read_file(live, path, room)
            room -= len(found[path])
        return found


def _regular(entries: object, folder: str) -> list[str]:
    """Return the paths of regular files in an answer of the guest's, each below `folder`."""
    if not isinstance(entries, list):
        raise FrameError("file_list: not a list")
    paths = []
    for value in entries:
        try:
            entry = FileEntry.parse(value)
            _, _, inner = entry.path.partition(f"/{folder}/")
            if entry.type == "file":
                paths.append(check_inner_path(f"{folder}/{inner}", "file_list"))
        except (ValueError, UsageError) as error:
            raise FrameError(f"file_list: {error}") from None
    return paths


async def result(live: Live, path: str, *, may_be_text: bool) -> tuple[Any, str]:
    """Return the JSON value a program left in `path`, and why there is none although it did.

    `may_be_text`: what is not JSON is the value itself, as a shell has nothing but text.
    """
    try:
        async with asyncio.timeout(_MOST_S):
            data = await read_file(live, path, _RESULT_CAP_BYTES)
    except GuestRefused as refusal:
        return None, "" if refusal.reason == "not_found" else str(refusal)
    except (ChannelLost, TimeoutError) as error:
        return None, str(error)
    try:
        return strict_json(data), ""
    except FrameError as error:
        if may_be_text:
            return data.decode("utf-8", "replace").removesuffix("\n"), ""
        return None, str(error)
