"""The building steps of a jail as small values: each can describe itself and be executed.

Named tuples: three processes of each start define them, and dataclasses would take them some ten
milliseconds more. Used by `plan` and `executor`. The order and choice of steps are in `plan`, the
lockdown in `lockdown`. The invariant: a step uses only what its fields say, so that the printed
plan is the whole truth. `execute(root)` works below `root` ("" once inside); sources are opened by
`prepare` before a mount can hide them.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Dict, NamedTuple, Tuple, Union

from cellwall.jail.plan import boot_id
from cellwall.linux import host_copies
from cellwall.linux.syscalls import mounts, process
from cellwall.linux.syscalls.libc import Prepared, SyscallError, do_all

_FLAG_NAMES = (
    (mounts.ATTR_RDONLY, "ro"),
    (mounts.ATTR_NOSUID, "nosuid"),
    (mounts.ATTR_NODEV, "nodev"),
    (mounts.ATTR_NOEXEC, "noexec"),
)


def _names(attributes: int) -> str:
    return ",".join(name for bit, name in _FLAG_NAMES if attributes & bit)


class Directory(NamedTuple):
    """Make a directory in the root under construction. mkdir(2)."""

    path: str
    mode: int = 0o755
    owner: int = -1
    """Id of its user and group; -1: those of the process that makes it."""

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"mkdir {self.path} {self.mode:o}"

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the calls. Parents are steps of their own; a bind may have made the directory."""
        return mounts.prepare_directory(root + self.path, self.mode, self.owner)

    def execute(self, root: str) -> None:
        """Make the directory."""
        do_all(self.prepared(root))


class Symlink(NamedTuple):
    """Make a symbolic link. symlink(2)."""

    path: str
    target: str

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"symlink {self.path} -> {self.target}"

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the call."""
        return (mounts.prepare_symlink(root + self.path, self.target),)

    def execute(self, root: str) -> None:
        """Make the link."""
        do_all(self.prepared(root))


class File(NamedTuple):
    """Write a small file with content of the engine: a synthetic view, not a host file.

    Python's file object would cost a fork a hundred pages.
    """

    path: str
    content: str
    mode: int = 0o444

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"file {self.path} ({len(self.content)} characters)"

    def prepared(self, root: str, free_fd: int) -> Tuple[Prepared, ...]:
        """Return the calls; the file becomes descriptor `free_fd` for a moment."""
        content = self.content.encode()
        return process.prepare_new_file(root + self.path, content, self.mode, free_fd)

    def execute(self, root: str) -> None:
        """Write the file."""
        do_all(self.prepared(root, process.lowest_free_fd()))


class BootId(NamedTuple):
    """Write the boot id that was drawn for this sandbox to a file that init keeps open.

    Why open: what the file is bound over is read-only, and a sandbox that becomes a copy of another
    gets the other's boot id. Only init has the descriptor.
    """

    path: str
    fd: int

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"file {self.path} with a random boot id, open at {self.fd}"

    def prepared(self, root: str, free_fd: int) -> Tuple[Prepared, ...]:
        """Return the calls; the file becomes descriptor `free_fd` for a moment."""
        return process.prepare_held_file(root + self.path, boot_id.TEXT, 0o444, (free_fd, self.fd))

    def execute(self, root: str) -> None:
        """Write the file."""
        do_all(self.prepared(root, process.lowest_free_fd()))


class Setting(NamedTuple):
    """Write a setting of this sandbox's own namespaces below /proc/sys. namespaces(7).

    Why: what a user namespace allows is counted there, and also charged to the user that made the
    namespace, so only a limit of its own keeps one sandbox from taking the share of all. Needs
    CAP_SYS_RESOURCE in that namespace, hence before the lockdown, and before /proc/sys is covered.
    """

    path: str
    value: int

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"set {self.path} to {self.value}"

    def prepared(self, root: str, free_fd: int) -> Tuple[Prepared, ...]:
        """Return the calls; the setting becomes descriptor `free_fd` for a moment."""
        return process.prepare_setting(root + self.path, str(self.value), free_fd)

    def execute(self, root: str) -> None:
        """Write the setting."""
        do_all(self.prepared(root, process.lowest_free_fd()))


class Bind(NamedTuple):
    """Bind a host directory or file, with attributes on its whole tree. mount(2) MS_BIND.

    Why a descriptor as the source: the path is resolved once, before anything is mounted over it.
    Does not protect what the source itself shows: only name sources that every program may read.
    """

    source: str
    path: str
    attributes: int = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"bind {self.source} on {self.path} {_names(self.attributes)}"

    def prepare(self) -> int:
        """Open the source on the host; the caller hands the descriptor to `execute_from`."""
        return os.open(self.source, os.O_PATH | os.O_CLOEXEC)

    def execute_from(self, root: str, source_fd: int) -> None:
        """Bind the opened source below `root` and set the attributes."""
        target = root + self.path
        if stat.S_ISDIR(os.fstat(source_fd).st_mode):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
        link = f"/proc/self/fd/{source_fd}"
        mounts.mount(link, target, None, mounts.MS_BIND | mounts.MS_REC, None)
        mounts.mount_setattr(target, self.attributes, recursive=True)


class Layer(NamedTuple):
    """Show a host directory through a read-only overlay of our own. overlayfs.rst.

    Why not a bind: a file opened in an overlay is an object of its own. A socket there has no
    listening process, a FIFO has no other end, and locks, watches and changes of times have no
    effect outside. What is read and mapped is the same memory. It shows one file system only: a
    mount below `source` is a step of its own. Does not hide what the source itself shows.
    """

    source: str
    path: str
    empty: str
    """Path of an empty directory of the root under construction: a read-only overlay needs at least
    two layers."""

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"overlay {self.source} on {self.path} ro,nosuid,nodev"

    def prepare(self) -> int:
        """Open the source on the host; the caller hands the descriptor to `execute_from`."""
        return os.open(self.source, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)

    def execute_from(self, root: str, source_fd: int) -> None:
        """Mount the overlay below `root`."""
        target = root + self.path
        os.makedirs(target, exist_ok=True)
        flags = mounts.MS_RDONLY | mounts.MS_NOSUID | mounts.MS_NODEV
        options = mounts.layers(f"/proc/self/fd/{source_fd}", root + self.empty)
        mounts.mount("overlay", target, "overlay", flags, options)


class Copy(NamedTuple):
    """Copy a small file or tree of the host: links, and the files that all users may read.

    Why not a bind: the copies belong to the template, and so do locks on them and watches.
    """

    source: str
    path: str

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"copy {self.source} to {self.path}"

    def prepare(self) -> int:
        """Open the source on the host; the caller hands the descriptor to `execute_from`."""
        return os.open(self.source, os.O_PATH | os.O_CLOEXEC)

    def execute_from(self, root: str, source_fd: int) -> None:
        """Copy the source below `root`."""
        os.makedirs(os.path.dirname(root + self.path), exist_ok=True)
        host_copies.copy(f"/proc/self/fd/{source_fd}", root + self.path)


class Device(NamedTuple):
    """Bind one harmless character device, checked by its number (CVE-2025-31133)."""

    name: str
    major: int
    minor: int

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"device /dev/{self.name} {self.major}:{self.minor}"

    def prepare(self) -> int:
        """Open the host's device node without opening the device."""
        fd = os.open("/dev/" + self.name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        status = os.fstat(fd)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(self.major, self.minor):
            raise SyscallError(
                errno.ENODEV, f"device /dev/{self.name}: not {self.major}:{self.minor}"
            )
        return fd

    def execute_from(self, root: str, source_fd: int) -> None:
        """Bind the node; read-only stops changes to the node and its times, not its use."""
        target = f"{root}/dev/{self.name}"
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
        mounts.mount(f"/proc/self/fd/{source_fd}", target, None, mounts.MS_BIND, None)
        attributes = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NOEXEC
        mounts.mount_setattr(target, attributes, recursive=False)


class Mount(NamedTuple):
    """Mount a fresh kernel file system: proc, tmpfs, devpts. mount(2)."""

    fstype: str
    path: str
    flags: int
    options: str = ""

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"mount {self.fstype} on {self.path} {_names(self.flags)} {self.options}".rstrip()

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the call; MS_ and ATTR_ bits agree for the four flags used here."""
        path, options = root + self.path, self.options or None
        return (mounts.prepare_mount(self.fstype, path, self.fstype, self.flags, options),)

    def execute(self, root: str) -> None:
        """Mount it."""
        do_all(self.prepared(root))


class Cover(NamedTuple):
    """Cover a path with something that is already inside: masks, views, work directories.

    Sources are objects that the engine made, on a mount that the program never wrote to.
    """

    source: str
    path: str
    missing_ok: bool = False
    """Whether the path may be absent: entries of /proc that this kernel or namespace does not show.
    """
    is_whole: bool = False
    """Whether everything that is mounted below the source is bound, too."""

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"cover {self.path} with {self.source}"

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the call; attributes come from the source's mount."""
        tolerated = errno.ENOENT if self.missing_ok else 0
        source, target = root + self.source, root + self.path
        flags = mounts.MS_BIND | (mounts.MS_REC if self.is_whole else 0)
        return (mounts.prepare_mount(source, target, None, flags, None, tolerated),)

    def execute(self, root: str) -> None:
        """Bind the source."""
        do_all(self.prepared(root))


class Remount(NamedTuple):
    """Set attributes on one existing mount."""

    path: str
    attributes: int

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"remount {self.path} {_names(self.attributes)}"

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the call."""
        return (mounts.prepare_attributes(root + self.path, self.attributes, recursive=False),)

    def execute(self, root: str) -> None:
        """Set the attributes."""
        do_all(self.prepared(root))


class FilesAs(NamedTuple):
    """Make files as another id of this user namespace from now on. setfsuid(2).

    Why: the files of a sandbox's system belong to root, as everywhere, and root is an id without a
    process. SECURITY: on a change away from root's id the kernel removes the capabilities over
    files, and on a change to root's id it gives them back; `lockdown` removes what remains.
    """

    wanted: int
    before: int

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"make files as {self.wanted}"

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the calls."""
        return process.prepare_file_ids(self.wanted, self.before)

    def execute(self, root: str) -> None:
        """Change the id."""
        do_all(self.prepared(root))


class Enter(NamedTuple):
    """Use a directory of the shared root as the root from now on. chroot(2).

    Why not pivot_root(2): that has to detach the shared root, which costs a tenth of a millisecond,
    and it would hide from a sandbox only that other sandboxes have that root, too. SECURITY: a
    process could leave it only with CAP_SYS_CHROOT, or with a directory opened outside; it has
    neither.
    """

    path: str

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"enter {self.path} as root"

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the calls."""
        return process.prepare_root(root + self.path)

    def execute(self, root: str) -> None:
        """Change the root."""
        do_all(self.prepared(root))


class Attach(NamedTuple):
    """Attach the detached mount behind a descriptor, and close the descriptor. move_mount(2).

    It shows the root of an image, or a volume, with ids of this sandbox; its flags are those that
    it was made with (`idmapper`, `jail.volumes`).
    """

    path: str
    fd: int

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"attach mount {self.fd} to {self.path} nosuid,nodev"

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the calls."""
        return (mounts.prepare_move(self.fd, root + self.path), process.prepare_close(self.fd))

    def execute(self, root: str) -> None:
        """Attach it."""
        do_all(self.prepared(root))


class Pivot(NamedTuple):
    """Make a mount the root, and detach the old root for good. pivot_root(2).

    Why not chroot(2): root inside an image keeps CAP_SYS_CHROOT, as a container's root does.
    """

    path: str

    def describe(self) -> str:
        """Describe the step in one line, for people."""
        return f"pivot to {self.path}, the old root is gone"

    def prepared(self, root: str) -> Tuple[Prepared, ...]:
        """Return the calls."""
        return mounts.prepare_pivot(root + self.path)

    def execute(self, root: str) -> None:
        """Change the root."""
        do_all(self.prepared(root))


_Building = Union[Directory, Symlink, File, BootId, Setting, Mount, Cover, Remount]
_Inside = Union[_Building, FilesAs, Enter, Attach, Pivot]
_FromHost = Union[Bind, Layer, Copy, Device]
Step = Union[_Inside, _FromHost]


class Lockdown(NamedTuple):
    """The rights that are taken away last, in this order; see `lockdown` for the calls.

    `posture` checks every field again from the host.
    """

    uid: int
    gid: int
    rlimits: Tuple[Tuple[int, int, int], ...]
    """(resource, soft, hard) as for setrlimit(2)."""
    landlock_abi: int
    """Landlock ABI of the kernel; 0 where the kernel has none, which `doctor` reports."""
    read_exec: Tuple[str, ...] = ()
    write: Tuple[str, ...] = ()
    devices: Tuple[str, ...] = ()
    """Directories where ioctl on a newly opened device is allowed; `seccomp` decides which ioctls.
    """
    listing: Tuple[str, ...] = ()
    """Directories that may only be listed; Landlock rules reach everything beneath."""
    capabilities: int = 0
    """Mask of the capabilities that its user keeps in the sandbox's user namespace: those of a
    container's root for root inside an image, else none."""
    builds_as_root: bool = False
    """Whether root of the sandbox's user namespace makes its mounts and files, and only afterwards
    becomes `uid`: an image has files of many ids."""
    refusals: str = ""
    """Name of a policy text that is stricter than seccomp.policy, or empty; see `seccomp`."""
    allows_more: Tuple[str, ...] = ()
    """Names of policy texts that allow more than seccomp.policy."""
    umask: int = 0o022
    clear_groups: bool = True
    """False only where the kernel forbids it: in a user namespace that an ordinary user mapped."""


class SandboxPlan(NamedTuple):
    """All of stage C: the mounts, then the lockdown."""

    steps: Tuple[Step, ...]
    lockdown: Lockdown


def as_json(step: Union[Step, Lockdown]) -> Dict[str, Any]:
    """Return plain data for `cellwall jail explain --json` and for the plan's digest."""
    data: Dict[str, Any] = {"step": type(step).__name__.lower()}
    data.update(step._asdict())
    return data
