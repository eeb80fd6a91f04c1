"""Entries: files as the protocol describes them, from what the sandbox's kernel says of them."""

from __future__ import annotations

import posixpath
import stat
from typing import TYPE_CHECKING

from cellwall.apps.doors.e2b.daemon.connect import messages
from cellwall.model.errors import FileError

if TYPE_CHECKING:
    from cellwall.apps.doors.e2b.daemon.connect.schema import Value
    from cellwall.apps.doors.e2b.daemon.users import Users
    from cellwall.client.files import Files
    from cellwall.model.files import FileEntry

_MOST_LINKS = 40
"""Links that are followed, as many as the kernel follows."""
_TYPES = {"file": messages.FILE, "directory": messages.DIRECTORY}
_LETTERS = {"directory": "d", "symlink": "L", "file": "-"}
_BITS = "rwxrwxrwx"


async def described(files: Files, entry: FileEntry, users: Users) -> Value:
    """Return the description of an entry.

    A link has the type and the mode of what it leads to; one that leads nowhere has no type.
    """
    shown = {
        "name": entry.name,
        "type": _TYPES.get(entry.type, messages.UNSPECIFIED),
        "path": entry.path,
        "size": entry.size,
        "mode": entry.mode,
        "permissions": permissions(entry),
        "owner": users.user(entry.uid),
        "group": users.group(entry.gid),
        "modified_time": entry.mtime,
        "metadata": entry.metadata,
    }
    if entry.type == "symlink":
        end = await _followed(files, entry)
        shown["symlink_target"] = entry.target or "" if end is None else end.path
        if end is not None:
            shown.update(type=_TYPES.get(end.type, messages.UNSPECIFIED), mode=end.mode)
    return shown


async def _followed(files: Files, entry: FileEntry) -> FileEntry | None:
    """Return what a link leads to in the end; None for nothing, or a circle."""
    found = entry
    for _ in range(_MOST_LINKS):
        if found.type != "symlink":
            return found
        place = posixpath.join(posixpath.dirname(found.path), found.target or "")
        try:
            found = await files.stat(place)
        except FileError:
            return None
    return None


def permissions(entry: FileEntry) -> str:
    """Return type and mode in letters, a link's type as `L`."""
    mode = stat.S_IMODE(entry.mode)
    bits = (letter if mode & (1 << (8 - at)) else "-" for at, letter in enumerate(_BITS))
    return _LETTERS.get(entry.type, "-") + "".join(bits)
