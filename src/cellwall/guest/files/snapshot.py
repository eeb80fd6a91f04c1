"""The root of a sandbox on an image as a layer (OCI `layer.md`), of which a new image is made.

It is the whole root, or, where the sandbox shows the upper directory of its overlay, what differs
from the image: files, whiteouts and opaque directories (overlayfs.rst).

`child_tasks.py` runs this in a child, with the rights of the sandbox's user. Not `trees`, which
serves callers: there neither owners nor set-uid bits travel. The invariant: all processes of the
caller are dead before the first file is read, so what is packed does not change meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import tarfile
from typing import IO, TYPE_CHECKING

from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.files.files import open_regular
from cellwall.guest.files.tree_walk import AFTER, Visit, walk_tree

if TYPE_CHECKING:
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.files.child_tasks import Task

_PIECE = 256 * 1024
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_OPAQUE_MARK = "user.overlay.opaque"
"""Attribute of a directory that hides the one below it; its value is then `y`."""
_TYPES = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}
"""What an image can hold; sockets and devices are left out."""


def snapshot(top: str) -> Task:
    """Return a task that ends all other processes and writes the root as a layer.

    `top` is the path of the overlay's upper directory, or `/` for the whole root.
    """
    return lambda _input, output_w: _snapshot(top, output_w)


def _snapshot(top: str, output_w: int) -> Header:
    with contextlib.suppress(ProcessLookupError):  # there is none
        os.kill(-1, signal.SIGKILL)  # all but init and this process: kill(2)
    with os.fdopen(output_w, "wb", closefd=False) as stream:
        packing = _Packing(stream)
        for visit in walk_tree(top, is_one_system=True):
            if visit.moment != AFTER:
                packing.add(visit)
        return packing.finish()


class _Packing:
    """A layer being written."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._tar = tarfile.open(  # noqa: SIM115 - closed by finish, which writes the end
            mode="w|", fileobj=stream, bufsize=_PIECE, format=tarfile.PAX_FORMAT
        )
        self._names: dict[tuple[int, int], str] = {}
        """First names of files that have several."""
        self._files = 0

    def add(self, visit: Visit) -> None:
        """Add what was met."""
        status = visit.status
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            self._add_mark([*visit.parents, f"{_WHITEOUT}{visit.name}"])
        kind = _TYPES.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            return
        member = _described(visit, kind)
        identity = (status.st_dev, status.st_ino)
        if kind != tarfile.DIRTYPE and identity in self._names:
            member.type, member.linkname = tarfile.LNKTYPE, self._names[identity]
            kind = tarfile.LNKTYPE
        elif kind != tarfile.DIRTYPE and status.st_nlink > 1:
            self._names[identity] = member.name
        if kind == tarfile.REGTYPE:
            self._add_file(visit.name, member)
        else:
            self._tar.addfile(member)
        if kind == tarfile.DIRTYPE and _is_opaque(visit.name):
            self._add_mark([*visit.parents, visit.name, _OPAQUE])
        self._files += 1
        self._tar.members = []  # type: ignore[attr-defined]  # or it remembers every one

    def _add_file(self, name: str, member: tarfile.TarInfo) -> None:
        try:
            fd = open_regular(name, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise refusal_from(error, f"commit {member.name!r}") from None
        with open(fd, "rb") as file:
            member.size = os.fstat(fd).st_size
            self._tar.addfile(member, file)

    def _add_mark(self, parts: list[str]) -> None:
        """Add a file whose name says that what layers below have there is gone."""
        self._tar.addfile(tarfile.TarInfo("/".join(parts)))

    def finish(self) -> Header:
        """Write the end of the archive."""
        self._tar.close()
        return {"files": self._files}


def _is_opaque(name: str) -> bool:
    try:
        return os.getxattr(name, _OPAQUE_MARK, follow_symlinks=False) == b"y"
    except OSError:  # it has none, or its file system has no attributes
        return False


def _described(visit: Visit, kind: bytes) -> tarfile.TarInfo:
    if visit.name.startswith(_WHITEOUT):
        raise Refusal("invalid", f"commit {visit.name!r}: a layer cannot hold such a name")
    status = visit.status
    member = tarfile.TarInfo("/".join([*visit.parents, visit.name]))
    member.type = kind
    member.mode = stat.S_IMODE(status.st_mode)
    member.uid, member.gid = status.st_uid, status.st_gid
    member.mtime = int(status.st_mtime)
    if kind == tarfile.SYMTYPE:
        member.linkname = os.readlink(visit.name)
    return member
