"""Thin typed wrappers of mount, mount_setattr, open_tree, move_mount, pivot_root, umount2, statfs.

No policy: `jail.plan.plan` decides what is mounted where. Paths are bytes-safe str; flags are the
kernel's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Tuple

from cellwall.linux.syscalls.libc import LIBC, Prepared, check, do_all, syscall

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

ATTR_RDONLY = 0x1
ATTR_NOSUID = 0x2
ATTR_NODEV = 0x4
ATTR_NOEXEC = 0x8
_ATTR_IDMAP = 0x100000

MNT_DETACH = 0x2

CGROUP_SUPER_MAGIC = 0x27E0EB
CGROUP2_SUPER_MAGIC = 0x63677270
TMPFS_MAGIC = 0x01021994

_UNMASKED = 0o755
"""Mode bits that the umask of boot and of the fork-server leaves."""
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine, -1)
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4


def prepare_mount(
    source: str, target: str, fstype: str | None, flags: int, data: str | None, tolerated: int = 0
) -> Prepared:
    """Prepare a mount: a file system, a bind, or a change of flags. mount(2)."""
    arguments = (
        os.fsencode(source),
        os.fsencode(target),
        None if fstype is None else fstype.encode(),
        ctypes.c_ulong(flags),
        None if data is None else data.encode(),
    )
    return Prepared(LIBC.mount, arguments, f"mount {fstype or source} on {target}", tolerated)


def mount(source: str, target: str, fstype: str | None, flags: int, data: str | None) -> None:
    """Mount now; see `prepare_mount`."""
    do_all((prepare_mount(source, target, fstype, flags, data),))


def prepare_attributes(target: str, attributes: int, *, recursive: bool) -> Prepared:
    """Prepare mount attributes, of the whole tree when `recursive`. mount_setattr(2), 5.12."""
    packed = struct.pack("=QQQQ", attributes, 0, 0, 0)
    words = (
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_long(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_ulong(_AT_RECURSIVE if recursive else 0),
        packed,
        ctypes.c_ulong(len(packed)),
    )
    return Prepared(LIBC.syscall, words, f"mount_setattr {target} {attributes:#x}")


def mount_setattr(target: str, attributes: int, *, recursive: bool) -> None:
    """Set mount attributes now; see `prepare_attributes`."""
    do_all((prepare_attributes(target, attributes, recursive=recursive),))


def cloned_mapped(directory: int, user_namespace: int, attributes: int) -> int:
    """Return a detached mount of an open directory whose files' ids are mapped.

    The ids of the file system are taken as ids inside of `user_namespace` and shown as those that
    they have outside; ids that it does not map are shown as the overflow ids. mount_setattr(2),
    5.12, needs CAP_SYS_ADMIN where the file system was mounted. Raises SyscallError.
    """
    packed = struct.pack("=QQQQ", attributes | _ATTR_IDMAP, 0, 0, user_namespace)
    return _changed(_cloned_directory(directory), packed, "mount_setattr: map ids")


def cloned_with(path: str, attributes: int) -> int:
    """Return a detached copy of the mount at `path`, with more attributes. Raises SyscallError.

    It needs CAP_SYS_ADMIN over the mount namespace of the caller, in which the path has to be.
    """
    packed = struct.pack("=QQQQ", attributes, 0, 0, 0)
    return _changed(cloned(path), packed, f"mount_setattr {path}")


def cloned_writable(directory: int) -> int:
    """Return a detached mount of an open directory that is not read-only. mount_setattr(2), 5.12.

    The mount that it is a copy of stays as it is. Raises SyscallError.
    """
    packed = struct.pack("=QQQQ", 0, ATTR_RDONLY, 0, 0)
    return _changed(_cloned_directory(directory), packed, "mount_setattr: writable")


def _cloned_directory(directory: int) -> int:
    flags = _AT_EMPTY_PATH | _OPEN_TREE_CLONE | os.O_CLOEXEC
    return syscall(_SYS_OPEN_TREE, directory, b"", flags, step="open_tree")


def _changed(mount: int, attributes: bytes, step: str) -> int:
    """Change the attributes of a detached mount, and return it; close it if that fails."""
    try:
        number, size = _SYS_MOUNT_SETATTR, len(attributes)
        syscall(number, mount, b"", _AT_EMPTY_PATH, attributes, size, step=step)
    except OSError:
        os.close(mount)
        raise
    return mount


def cloned(path: str) -> int:
    """Return a detached copy of the mount at `path`, with its flags. open_tree(2), 5.2."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    return syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags, step=f"open_tree {path}")


def prepare_move(mount: int, target: str) -> Prepared:
    """Prepare to attach a detached mount, a descriptor, to the tree. move_mount(2), 5.2."""
    words = (
        ctypes.c_long(_SYS_MOVE_MOUNT),
        ctypes.c_long(mount),
        b"",
        ctypes.c_long(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_ulong(_MOVE_MOUNT_F_EMPTY_PATH),
    )
    return Prepared(LIBC.syscall, words, f"move_mount to {target}")


def prepare_directory(path: str, mode: int, owner: int = -1) -> Tuple[Prepared, ...]:
    """Prepare a directory of exactly `mode`; an existing one is used. mkdir(2), chmod(2)."""
    name, bits, number = os.fsencode(path), ctypes.c_uint(mode), ctypes.c_uint(owner)
    calls = [Prepared(LIBC.mkdir, (name, bits), f"mkdir {path}", errno.EEXIST)]
    if mode & ~_UNMASKED:
        calls.append(Prepared(LIBC.chmod, (name, bits), f"chmod {path} {mode:o}"))
    if owner >= 0:
        calls.append(Prepared(LIBC.chown, (name, number, number), f"chown {path} {owner}"))
    return tuple(calls)


def prepare_symlink(path: str, target: str) -> Prepared:
    """Prepare a symbolic link. symlink(2)."""
    return Prepared(LIBC.symlink, (os.fsencode(target), os.fsencode(path)), f"symlink {path}")


def layers(lower: str, empty: str) -> str:
    """Return the options of an overlay that shows `lower` and can take no change. overlayfs.rst.

    They name two directories, because a read-only overlay needs at least two.
    """
    return f"lowerdir={_escaped(lower)}:{_escaped(empty)},redirect_dir=nofollow"


def _escaped(path: str) -> str:
    for sign in ("\\", ":", ","):
        path = path.replace(sign, "\\" + sign)
    return path


def prepare_pivot(new_root: str) -> Tuple[Prepared, ...]:
    """Prepare to make `new_root` the root, and to detach the old one. pivot_root(2), NOTES."""
    pivot = (ctypes.c_long(_SYS_PIVOT_ROOT), b".", b".")
    return (
        Prepared(LIBC.chdir, (os.fsencode(new_root),), f"chdir {new_root}"),
        Prepared(LIBC.syscall, pivot, f"pivot_root {new_root}"),
        Prepared(LIBC.umount2, (b".", ctypes.c_int(MNT_DETACH)), "umount2 old root"),
        Prepared(LIBC.chdir, (b"/",), "chdir /"),
    )


def write_back(target: str) -> None:
    """Have all that was written to a file system on its disk. syncfs(2)."""
    fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        check(LIBC.syncfs(fd), f"syncfs {target}")
    finally:
        os.close(fd)


def unmount_lazily(target: str) -> None:
    """Take a mount out of the tree; it ends with its last use. umount2(2), MNT_DETACH."""
    flags = ctypes.c_int(MNT_DETACH)
    check(LIBC.umount2(os.fsencode(target), flags), f"umount2 {target}")


def pivot_into(new_root: str) -> None:
    """Make `new_root` the root now; see `prepare_pivot`."""
    do_all(prepare_pivot(new_root))


def changeable(lower: str, upper: str, work: str, marks: str = "user") -> str:
    """Return the options of an overlay over `lower` whose changes lie in `upper`. overlayfs.rst.

    Its marks are `user.` attributes: a user namespace may set no others. On a tmpfs these need
    Linux 6.6. With `marks` "trusted" they are those that only the host's root may set.
    """
    parts = (("lowerdir", lower), ("upperdir", upper), ("workdir", work))
    options = ",".join(f"{name}={_escaped(path)}" for name, path in parts)
    return options if marks == "trusted" else f"{options},userxattr"


class _Statfs(ctypes.Structure):
    _fields_ = [("f_type", ctypes.c_long), ("rest", ctypes.c_long * 32)]


def filesystem_magic(path: str) -> int:
    """Return the magic number of the file system at `path`. statfs(2)."""
    buffer = _Statfs()
    check(LIBC.statfs(os.fsencode(path), ctypes.byref(buffer)), f"statfs {path}")
    return int(buffer.f_type) & 0xFFFFFFFF
