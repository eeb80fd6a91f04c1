"""One layer after the other into the tree that is this process's root directory.

OCI image specification 1.1, `layer.md`. Paths are resolved by the kernel, from `/`, which is the
tree: a link in it cannot lead out, because there is nothing outside (`process`). The invariants:
the last part of a path is never followed; a tree is used only if each layer's bytes have the
layer's digest.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import Dict, List, NamedTuple, Set, Tuple

from cellwall.jail.unpack.child_process import Refused, write_all
from cellwall.jail.unpack.layer_bytes import Layer
from cellwall.jail.unpack.layer_stream import LayerStream
from cellwall.jail.unpack.tar_stream import Member
from cellwall.linux.syscalls import id_maps

_PIECE = 1 << 20
_ZEROS = bytes(_PIECE)
_LEAST_HOLE = 64 << 10
"""Bytes: a shorter run of zeros is written, which takes less time than a hole."""
_MOST_NAME, _MOST_PATH, _MOST_DEPTH = 255, 4095, 256
_SHORT = _MOST_NAME // 4
"""Characters of a name that is within these bounds, since one takes four bytes at most."""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


class Bounds(NamedTuple):
    """Most that one image may have."""

    most_bytes: int
    most_inodes: int
    most_ratio: int
    """Bytes of a layer for each byte of it compressed, beyond the first 64 MiB."""


class Tree:
    """The tree, and what has come into it."""

    def __init__(self, bounds: Bounds, ids: id_maps.Lines) -> None:
        """Files may belong to the ids that `ids` maps."""
        self._bounds = bounds
        self._ids = ids
        self.bytes = self.inodes = 0
        self.skipped: Dict[str, int] = {"devices": 0, "attributes": 0}
        self._made: Set[str] = set()
        """Paths that the layer at hand has made, or has made something below: its whiteouts are for
        what was there before."""
        self._folders: Dict[str, str] = {}
        """Real paths of folders, until a link or a directory changes."""
        self._times: List[Tuple[str, int]] = []

    def add(self, layer: Layer) -> None:
        """Unpack one layer over those before it. Raises `Refused`, OSError.

        After an OSError this process has to end, and its children end with it.
        """
        self._made.clear()
        self._folders.clear()
        self._times.clear()
        members = LayerStream(layer, self._bounds.most_ratio)
        refused = None
        try:
            for member in members:
                self._take(members, member)
        except Refused as refusal:
            refused = refusal
        except ValueError as error:
            refused = Refused(f"a layer has an odd name: {str(error)[:200]}")
        refused = members.close() or refused  # what is wrong with its bytes comes first
        if refused is not None:
            raise refused
        for path, when in reversed(self._times):
            if os.path.isdir(path) and not os.path.islink(path):
                os.utime(path, ns=(when, when))

    def _take(self, members: LayerStream, member: Member) -> None:
        path = checked_path(member.name)
        folder, name = os.path.split(path)
        if name.startswith(_WHITEOUT):
            self._whiteout(folder, name)
            return
        self._count()
        self._check(path, member)
        if member.attributes:
            self.skipped["attributes"] += 1
        path = os.path.join(self._parents(folder), name)
        if member.kind == "file":
            self._file(members, path, member)
        elif member.kind == "directory":
            self._directory(path, member)
        elif member.kind == "link":
            self._clear(path)
            self._folders.clear()
            os.symlink(member.link, path)
            self._settle(path, member, is_link=True)
        elif member.kind == "hard link":
            self._hard_link(path, member)
        elif member.kind == "fifo":
            self._clear(path)
            os.mkfifo(path, 0o600)
            self._settle(path, member)
        else:
            self.skipped["devices"] += 1
            return
        while path not in self._made:
            self._made.add(path)
            path = os.path.dirname(path)

    def _check(self, path: str, member: Member) -> None:
        if f"/{_WHITEOUT}" in path:
            raise Refused(f"{path[:200]!r} lies below a whiteout")
        for number in (member.uid, member.gid):
            if id_maps.distance(self._ids, number) < 0:
                said = f"{path[:200]!r} belongs to id {member.uid}:{member.gid}"
                raise Refused(said, "ids" if 0 <= number < id_maps.IDS else "invalid")

    def _count(self) -> None:
        self.inodes += 1
        if self.inodes > self._bounds.most_inodes:
            raise Refused(f"it has more than {self._bounds.most_inodes} files", "bound")

    def _clear(self, path: str) -> None:
        """Remove what is there; a link, not what it leads to."""
        found = _mode(path)
        if path == "/":
            raise Refused("the root of a layer is no directory")
        if stat.S_ISDIR(found):
            self._folders.clear()
            shutil.rmtree(path)
        elif found:
            if stat.S_ISLNK(found):
                self._folders.clear()
            os.unlink(path)

    def _whiteout(self, folder: str, name: str) -> None:
        folder = os.path.realpath(folder)
        if name == _OPAQUE:
            self._empty(folder)
            return
        hidden = name[len(_WHITEOUT) :]
        if hidden in {"", ".", ".."} or hidden.startswith(_WHITEOUT):
            raise Refused(f"{name[:200]!r} hides nothing that has a name")
        self._hide(os.path.join(folder, hidden))

    def _hide(self, path: str) -> None:
        """Remove what layers before this one have put to a path, and below it."""
        if path not in self._made:
            self._clear(path)
        else:
            self._empty(path)

    def _empty(self, folder: str) -> None:
        if stat.S_ISDIR(_mode(folder)):
            for name in os.listdir(folder):
                self._hide(os.path.join(folder, name))

    def _parents(self, folder: str) -> str:
        """Return the real path of a folder; make directories that no layer names.

        A link among them leads within the tree.
        """
        found = self._folders.get(folder)
        if found is not None:
            return found
        found = os.path.realpath(folder)
        if not stat.S_ISDIR(_mode(found)):
            above = found
            while not os.path.lexists(above):
                self._count()
                above = os.path.dirname(above)
            try:
                os.makedirs(found, 0o755, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise Refused(f"{folder[:200]!r} is no directory") from None
        self._folders[folder] = found
        return found

    def _directory(self, path: str, member: Member) -> None:
        found = _mode(path)
        if not stat.S_ISDIR(found):
            if found:
                self._clear(path)
            if path != "/":
                os.mkdir(path, 0o700)
        self._settle(path, member)
        self._times.append((path, member.mtime_ns))

    def _file(self, members: LayerStream, path: str, member: Member) -> None:
        self.bytes += member.size
        if self.bytes > self._bounds.most_bytes:
            raise Refused(f"it has more than {self._bounds.most_bytes} bytes", "bound")
        fd = self._opened(path)
        try:
            for piece in members.content():
                if _is_hole(piece):
                    os.ftruncate(fd, os.lseek(fd, len(piece), os.SEEK_CUR))
                else:
                    write_all(fd, piece)
            os.fchown(fd, member.uid, member.gid)
            os.fchmod(fd, member.mode & 0o7777)
            os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))
        finally:
            os.close(fd)

    def _opened(self, path: str) -> int:
        """Return a descriptor of a new file, instead of what is there; mostly nothing is."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except (FileExistsError, IsADirectoryError):
            self._clear(path)
            return os.open(path, flags, 0o600)

    def _hard_link(self, path: str, member: Member) -> None:
        target = checked_path(member.link)
        found = _mode(target)
        if not found or stat.S_ISDIR(found):
            raise Refused(f"{path[:200]!r} is a hard link to {target[:200]!r}, which is no file")
        if target != path:
            self._clear(path)
            os.link(target, path, follow_symlinks=False)

    def _settle(self, path: str, member: Member, *, is_link: bool = False) -> None:
        os.lchown(path, member.uid, member.gid)
        if not is_link:
            os.chmod(path, member.mode & 0o7777)
        os.utime(path, ns=(member.mtime_ns, member.mtime_ns), follow_symlinks=False)


def _is_hole(piece: memoryview) -> bool:
    """Report whether bytes need no room on a disk, as those of sparse files."""
    return len(piece) >= _LEAST_HOLE and not piece[0] and piece.tobytes() == _ZEROS[: len(piece)]


def checked_path(name: str) -> str:
    """Return the absolute path that a member's name means. Raises `Refused`."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts or "\0" in name:
        raise Refused(f"{name[:200]!r} is no path of a layer")
    path = "/" + "/".join(parts)
    if len(name) <= _SHORT:
        return path
    longest = max((len(os.fsencode(part)) for part in parts), default=0)
    if longest > _MOST_NAME or len(os.fsencode(path)) > _MOST_PATH or len(parts) > _MOST_DEPTH:
        raise Refused(f"{name[:80]!r}… is too long or too deep", "bound")
    return path


def _mode(path: str) -> int:
    """Return the mode of what is there, itself if it is a link; 0 if there is nothing."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
