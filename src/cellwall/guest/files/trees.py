"""Remove, move, pack and unpack whole trees; `child_tasks.py` runs this in a child.

Each function makes a task; the task reads descriptor 0 or writes descriptor 1 as a tar stream and
returns the fields of the reply. It never runs in init: it blocks, it changes directory, and a
hostile archive may exhaust its memory.

SECURITY: extraction opens every parent without following links, so neither an archive nor what lies
in the target can redirect a write. A link may lead anywhere, as one that is made inside may: the
process that follows it later is confined as the process that made it.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from cellwall.guest.channel.errors import Refusal, refusal_from
from cellwall.guest.files.files import open_regular
from cellwall.guest.files.tree_walk import AFTER, BEFORE, Visit, walk_tree

if TYPE_CHECKING:
    from cellwall.guest.channel.frames import Header
    from cellwall.guest.files.child_tasks import Task

COPY_BYTES = 256 * 1024
_PERMISSION_BITS = 0o777  # neither setuid nor sticky bits travel
_LATEST_MTIME = 2**33
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def removal(path: str) -> Task:
    """Return a task that removes a directory and everything in it, however deep."""
    return lambda _input, _output: _remove(path)


def relocation(path: str, target: str) -> Task:
    """Return a task that moves between file systems: copy, then remove."""
    return lambda _input, _output: _relocate(path, target)


def departure(path: str) -> Task:
    """Return a task that writes a file or a directory's content as a tar stream."""
    return lambda _input, output_w: _pack(path, output_w)


def arrival(path: str) -> Task:
    """Return a task that unpacks a tar stream below a directory, which is made if need be."""
    return lambda input_r, _output: _unpack(path, input_r)


# -- removing and moving ---------------------------------------------------------------------------


def _remove(path: str) -> Header:
    count = 0
    _make_passable(path, os.lstat(path))
    for visit in walk_tree(path):
        if visit.moment == BEFORE:
            _make_passable(visit.name, visit.status)
            continue
        count += 1
        if visit.moment == AFTER:
            os.rmdir(visit.name)
        else:
            os.unlink(visit.name)
    os.chdir("/")
    os.rmdir(path)
    return {"removed": count + 1}


def _make_passable(name: str, status: os.stat_result) -> None:
    # An owner may remove a directory even if its mode lets the owner neither read nor change it.
    if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(name, stat.S_IRWXU)


def _relocate(path: str, target: str) -> Header:
    import shutil  # rarely needed, and init never pays for it

    if os.path.isdir(target):
        raise Refusal("exists", f"move to {target!r}: is a directory; name what is to be made")
    if not os.access(os.path.dirname(path), os.W_OK):  # or it is copied first, and stays a copy
        raise Refusal("permission", f"move {path!r}: its directory cannot be changed")
    try:
        shutil.move(path, target)
    except RecursionError:
        raise Refusal("too_large", f"move {path!r}: too deep to be copied; move parts") from None
    except shutil.Error as error:
        raise Refusal("internal", f"move {path!r}: {error}") from None
    return {}


# -- packing ---------------------------------------------------------------------------------------


class _Exactly:
    """A file of exactly the announced size, whatever its writers do meanwhile."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._left = size

    def read(self, size: int) -> bytes:
        """Return bytes of the file; zeros where it has shrunk."""
        wanted = min(size, self._left)
        data = os.read(self._fd, wanted) if wanted else b""
        if not data:
            data = bytes(wanted)
        self._left -= len(data)
        # tarfile wants all it asked for at once.
        return data if len(data) == wanted else data + self.read(wanted - len(data))


class Packing:
    """A tar stream being written."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._tar = tarfile.open(  # noqa: SIM115  closed by finish, which writes the end
            mode="w|", fileobj=stream, bufsize=COPY_BYTES, format=tarfile.PAX_FORMAT
        )
        self.files = 0
        self.bytes = 0

    def add(self, name: str, archived_name: str, status: os.stat_result) -> None:
        """Add what lies at `name`; sockets, FIFOs and devices are left out."""
        member = tarfile.TarInfo(archived_name)
        member.mode = status.st_mode & _PERMISSION_BITS
        member.mtime = int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            self._tar.addfile(member)
        elif stat.S_ISLNK(status.st_mode):
            member.type = tarfile.SYMTYPE
            member.linkname = os.readlink(name)
            self._tar.addfile(member)
        elif stat.S_ISREG(status.st_mode):
            self._add_file(name, member)
        self._tar.members = []  # type: ignore[attr-defined]  # or it remembers every one

    def _add_file(self, name: str, member: tarfile.TarInfo) -> None:
        try:
            fd = open_regular(name, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        except OSError as error:
            raise refusal_from(error, f"pack {member.name!r}") from None
        try:
            member.size = os.fstat(fd).st_size
            self._tar.addfile(member, _Exactly(fd, member.size))  # type: ignore[arg-type]
        finally:
            os.close(fd)
        self.files += 1
        self.bytes += member.size

    def add_bytes(self, archived_name: str, data: bytes) -> None:
        """Add a file that is not one of the sandbox; it is not counted."""
        member = tarfile.TarInfo(archived_name)
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))

    def finish(self) -> Header:
        """Write the end of the archive."""
        self._tar.close()
        return {"files": self.files, "bytes": self.bytes}


def _pack(path: str, output_w: int) -> Header:
    top = os.path.realpath(path)
    status = os.stat(top)
    with os.fdopen(output_w, "wb", closefd=False) as stream:
        packing = Packing(stream)
        if stat.S_ISDIR(status.st_mode):
            for visit in walk_tree(top):
                if visit.moment != AFTER:
                    packing.add(visit.name, archived_name(visit), visit.status)
        elif stat.S_ISREG(status.st_mode):
            packing.add(top, os.path.basename(path), status)
        else:
            raise Refusal("invalid", f"pack {path!r}: is neither a file nor a directory")
        return packing.finish()


def archived_name(visit: Visit) -> str:
    """Return the path of a visited entry below the top."""
    return "/".join([*visit.parents, visit.name])


# -- unpacking -------------------------------------------------------------------------------------


def _unpack(path: str, input_r: int) -> Header:
    is_new = not os.path.lexists(path)
    os.makedirs(path, exist_ok=True)
    unpacking = Unpacking(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        _unpack_all(unpacking, path, input_r)
    except Refusal as refusal:
        if is_new:
            _remove(path)
            left = "nothing of it is left"
        else:
            left = f"what came before it is there, {unpacking.files} files"
        raise Refusal(refusal.code, f"{refusal.message}; {left}") from None
    return {"files": unpacking.files, "bytes": unpacking.bytes}


def _unpack_all(unpacking: Unpacking, path: str, input_r: int) -> None:
    try:
        with os.fdopen(input_r, "rb", closefd=False) as stream, tarfile.open(
            mode="r|", fileobj=stream, bufsize=COPY_BYTES
        ) as tar:
            for member in tar:
                unpacking.add(tar, member)
                tar.members = []  # type: ignore[attr-defined]  # or it remembers every one
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise Refusal("invalid", f"unpack into {path!r}: not a tar archive: {error}") from None


class Unpacking:
    """A tree being written below one open directory."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._parent: tuple[str, ...] = ()
        self._parent_fd = root_fd
        self.files = 0
        self.bytes = 0

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write one member. Raises Refusal."""
        parts = _checked_parts(member.name)
        try:
            if not parts:
                return  # the root itself
            self._enter(parts[:-1])
            if member.isdir():
                self._add_folder(parts[-1], member)
            elif member.issym():
                self._clear(parts[-1])
                os.symlink(member.linkname, parts[-1], dir_fd=self._parent_fd)
            elif member.islnk():
                self._add_hard_link(parts[-1], member)
            elif member.isfile():
                self._add_file(parts[-1], tar, member)
            else:
                raise Refusal("invalid", f"unpack {member.name!r}: devices and FIFOs may not enter")
        except OSError as error:
            raise refusal_from(error, f"unpack {member.name!r}") from None

    def _enter(self, parent: tuple[str, ...]) -> None:
        """Make `parent` the open directory; keep the current one if it is the same."""
        if parent == self._parent:
            return
        opened = self._open_folder(parent)
        if self._parent_fd != self._root_fd:
            os.close(self._parent_fd)
        self._parent, self._parent_fd = parent, opened

    def _open_folder(self, parts: tuple[str, ...]) -> int:
        fd = self._root_fd
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
            try:
                below = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
            finally:
                if fd != self._root_fd:
                    os.close(fd)
            fd = below
        return fd

    def _add_folder(self, name: str, member: tarfile.TarInfo) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=self._parent_fd)
        fd = os.open(name, _FOLDER_FLAGS, dir_fd=self._parent_fd)
        try:
            # Its owner keeps all rights: the members below have yet to come.
            os.fchmod(fd, member.mode & _PERMISSION_BITS | stat.S_IRWXU)
        finally:
            os.close(fd)

    def _add_file(self, name: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._clear(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._parent_fd)
        try:
            for piece in _content(tar, member):
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            os.fchmod(fd, member.mode & _PERMISSION_BITS)
            mtime = min(max(float(member.mtime), 0.0), _LATEST_MTIME)
            os.utime(fd, (mtime, mtime))
        finally:
            os.close(fd)
        self.files += 1
        self.bytes += member.size

    def _add_hard_link(self, name: str, member: tarfile.TarInfo) -> None:
        source = _checked_parts(member.linkname)
        if not source:
            raise Refusal("invalid", f"unpack {member.name!r}: links to the tree itself")
        self._clear(name)
        source_fd = self._open_folder(source[:-1])
        try:
            os.link(
                source[-1],
                name,
                src_dir_fd=source_fd,
                dst_dir_fd=self._parent_fd,
                follow_symlinks=False,
            )
        finally:
            if source_fd != self._root_fd:
                os.close(source_fd)

    def _clear(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._parent_fd)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    stream = tar.extractfile(member)
    while stream is not None:
        piece = stream.read(COPY_BYTES)
        if not piece:
            return
        yield piece


def _checked_parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Refusal("invalid", f"unpack {name!r}: must be a relative path without '..'")
    return parts
