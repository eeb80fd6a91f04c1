"""Unprivileged id ranges of the host for fork-servers, and single ids for sandboxes.

Runs in the engine process. As root every fork-server gets 65536 ids that no account uses. The range
is held by a lock on a file for as long as the embedding process lives, so that two engines never
share one. A fork-server of an ordinary user gets 2048 of the ids that this user may map
(`subordinate_ids`). Where there are none, all sandboxes share one id, the user's own, and `Ids`
says so. Range source: systemd's "Users, Groups, UIDs and GIDs" lists 0x70000000–0x7FFFFFFF as
unused.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cellwall.linux.syscalls import id_maps
from cellwall.model.errors import CapacityError, HostUnsupported

if TYPE_CHECKING:
    from cellwall.linux import subordinate_ids

_FIRST = 0x70000000
COUNT = 65_536
_RANGES = 0x0800
_BLOCKS = 15
BLOCK = 128
"""Number of ranges in a block: one for a fork-server, and one for each of its sandboxes."""
IMAGE_BASE = 0x7FFF0000
"""First of the 65,536 ids that own the files of images on disk: behind all ranges, so that no
process has one, and a set-uid file gives nothing on the host."""
MORE_FOR_IMAGES = "give this user 81920 subordinate ids (subuid(5)), or run cellwall as root"
_DIRECTORY = Path("/run/cellwall/uid-ranges")


class UidRange:
    """A range held by this process; index 0 is the fork-server's root, the rest are sandboxes'.

    The exception is the last id, which no process ever has: inside it is root, which owns the
    system.
    """

    def __init__(
        self,
        base: int,
        gid_base: int,
        count: int,
        lock_fd: int | None,
        outer: subordinate_ids.Outer | None = None,
    ) -> None:
        """Use `Ids.hold` instead. `outer`: the same ids, if `boot` maps them first."""
        self.base = base
        self.outer = outer
        self.gid_base = gid_base
        self.count = count
        self.lock_fd = lock_fd
        self._live: set[int] = set()
        steps = range(COUNT, count, COUNT) if count > COUNT else range(1, count - 1)
        self._most = len(steps)
        self._next = itertools.cycle(steps)

    @property
    def is_block(self) -> bool:
        """Whether each sandbox gets a whole range of its own, for the files of an image."""
        return self.count > COUNT

    @property
    def is_full(self) -> bool:
        """Whether a block has no range left for another sandbox."""
        return self.is_block and len(self._live) >= self.count // COUNT - 1

    @property
    def root_index(self) -> int:
        """Index of the id that is root inside; 0 where only the sandbox's id can be mapped."""
        return self.count - 1

    @property
    def inner_base(self) -> int:
        """The first id as `boot` sees it."""
        return self.base if self.outer is None else 1

    def take(self) -> int:
        """Take an index that no live sandbox has."""
        if self.count == 1:
            return 0
        for _ in range(self._most):
            index = next(self._next)
            if index not in self._live:
                self._live.add(index)
                return index
        raise CapacityError("uid range: every id belongs to a live sandbox", retry_after_s=1.0)

    def give_back(self, index: int) -> None:
        """Make an index available again, once its sandbox is gone."""
        self._live.discard(index)

    def host_uid(self, index: int) -> int:
        """The user id on the host behind an index."""
        return self.base + index

    def host_gid(self, index: int) -> int:
        """The group id on the host behind an index; an ordinary user's may differ from the uid."""
        return self.gid_base + index

    @property
    def lock(self) -> tuple[int, ...]:
        """The descriptor that holds the range: another process with a copy holds it, too."""
        return () if self.lock_fd is None else (self.lock_fd,)

    def release(self) -> None:
        """Make the range available to other engines."""
        if self.lock_fd is not None:
            os.close(self.lock_fd)
            self.lock_fd = None


class _SharedRange(UidRange):
    """An ordinary user's: a slice for the fork-server, behind it the ids of all its sandboxes."""

    def __init__(self, own: UidRange, images: subordinate_ids.ImageIds) -> None:
        outer = None if own.outer is None else replace(own.outer, behind=images)
        super().__init__(own.base, own.gid_base, own.count + images.total, own.lock_fd, outer)
        self._own, self._images = own.count, images

    @property
    def is_full(self) -> bool:
        return False

    @property
    def root_index(self) -> int:
        return self._own - 1

    def take(self) -> int:
        return self._own

    def host_uid(self, index: int) -> int:
        at = index - self._own
        return super().host_uid(index) if at < 0 else self._images.uid + at

    def host_gid(self, index: int) -> int:
        at = index - self._own
        return super().host_gid(index) if at < 0 else self._images.gid + at


def too_few_for_images(ids: Ids) -> HostUnsupported:
    """Return the refusal of an image to an ordinary user without the ids of one."""
    from cellwall.linux.subordinate_ids import EXAMPLE  # root needs none

    outer = ids.outer
    why = ids.detail if outer is None else f"{outer.count} subordinate ids are too few"
    more = f"usermod --add-subuids {EXAMPLE} --add-subgids {EXAMPLE} NAME"
    return HostUnsupported(
        "images",
        f"image: an ordinary user needs 65536 ids of its own for the files of images: {why}",
        remedy=ids.remedy or f"as root: {more}, with ids of no account; or run cellwall as root",
    )


def covers(id_map: str) -> bool:
    """Report whether a uid_map or gid_map (user_namespaces(7)) holds every range of this module."""
    for line in id_map.splitlines():
        first, _, count = (int(word) for word in line.split())
        if first <= _FIRST and first + count >= _FIRST + (_RANGES + _BLOCKS * BLOCK) * COUNT:
            return True
    return False


def is_rootless() -> bool:
    """Report whether this process can map only its own ids.

    That is so for an ordinary user, and also for the root of another user's namespace (rootless
    Podman, a container with remapped ids): the host's unprivileged ranges do not exist in there.
    """
    if os.geteuid() != 0:
        return True
    maps = (
        Path(f"/proc/self/{name}").read_text(encoding="ascii") for name in ("uid_map", "gid_map")
    )
    return not all(covers(text) for text in maps)


class Ids(NamedTuple):
    """The source of sandboxes' ids on this host."""

    rootless: bool
    """Whether this process may by itself map only its own id."""
    outer: subordinate_ids.Outer | None
    detail: str
    remedy: str = ""

    @property
    def are_shared(self) -> bool:
        """Whether every sandbox has the engine's own id, and so shares the kernel's counts."""
        return self.rootless and self.outer is None

    def hold(self) -> UidRange:
        """Hold ids for one fork-server."""
        if not self.rootless:
            return acquire()
        return single() if self.outer is None else _slice(self.outer)

    @property
    def of_images(self) -> subordinate_ids.ImageIds | None:
        """The ids of an ordinary user that all images and sandboxes on them have; None: others."""
        return None if self.outer is None else self.outer.of_images

    @property
    def image_lines(self) -> id_maps.Lines:
        """Which ids of a sandbox on an image are which of the image's."""
        return id_maps.WHOLE if self.of_images is None else self.of_images.lines

    def check_image_user(self, uid: int, gid: int) -> None:
        """Raise HostUnsupported if a user of an image has no id on this host."""
        for number in (uid, gid):
            if id_maps.distance(self.image_lines, number) < 0:
                raise HostUnsupported(
                    "images",
                    f"user: its id {number} is none of those that are mapped for images here",
                    remedy=MORE_FOR_IMAGES,
                )

    def check_image_owner(self, tree: str) -> None:
        """Raise HostUnsupported if an image was unpacked with other ids than this user has now.

        Inside, its files would belong to the overflow id, whatever they belong to in the image.
        """
        images = self.of_images
        if images is not None and not 0 <= os.lstat(tree).st_uid - images.uid < images.total:
            raise HostUnsupported(
                "images",
                f"image: its files in {tree} belong to ids that are not this user's (subuid(5))",
                remedy="give the user the ids back that it had, or have root remove the folder",
            )

    def hold_for_images(self) -> UidRange:
        """Hold ids for one fork-server whose sandboxes are on images. Raises HostUnsupported."""
        if not self.rootless:
            return acquire_block()
        if self.outer is None or self.outer.of_images is None:
            raise too_few_for_images(self)
        return _SharedRange(_slice(self.outer), self.outer.of_images)


def find() -> Ids:
    """Find out the source of ids on this host; tens of milliseconds for an ordinary user."""
    if not is_rootless():
        return Ids(False, None, f"{COUNT} of its own for each fork-server's sandboxes")
    from cellwall.linux import subordinate_ids  # root needs none

    return Ids(True, *subordinate_ids.ask())


def single() -> UidRange:
    """Return the last resort: the engine's own ids."""
    return UidRange(os.geteuid(), os.getegid(), 1, None)


def acquire() -> UidRange:
    """Lock the first free range."""
    for number in range(_RANGES):
        fd = _locked(_directory() / str(number))
        if fd is not None:
            first = _FIRST + number * COUNT
            return UidRange(first, first, COUNT, fd)
    raise CapacityError(f"uid ranges: all {_RANGES} are in use on this host", retry_after_s=60.0)


def acquire_block() -> UidRange:
    """Lock the first free block of ranges, for the sandboxes of one fork-server on images."""
    for number in range(_BLOCKS):
        fd = _locked(_directory() / f"block-{number}")
        if fd is not None:
            first = _FIRST + (_RANGES + number * BLOCK) * COUNT
            return UidRange(first, first, BLOCK * COUNT, fd)
    raise CapacityError(
        f"uid ranges: all {_BLOCKS} blocks for images are in use on this host", retry_after_s=60.0
    )


def _directory() -> Path:
    try:
        _DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise HostUnsupported(
            "uid ranges",
            f"make {_DIRECTORY}: {error.strerror}",
            remedy="make /run writable for root, or run as an ordinary user",
            errno=error.errno,
        ) from error
    return _DIRECTORY


def _locked(path: Path) -> int | None:
    """Lock a file for as long as it is open; return None if another process has locked it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _slice(outer: subordinate_ids.Outer) -> UidRange:
    """Lock the first free slice of an ordinary user's ids."""
    folder = _own_folder()
    for number in range(outer.slices):
        part = outer.part(number)
        fd = _locked(folder / str(part.uid))
        if fd is not None:
            return UidRange(part.uid, part.gid, part.count, fd, part)
    raise CapacityError(
        f"subordinate ids: all {outer.count} of this user are in use by fork-servers",
        retry_after_s=60.0,
        remedy="add more to /etc/subuid and /etc/subgid",
    )


def _own_folder() -> Path:
    """Return the folder for the locks of this user's engines: below /run/user, else /tmp."""
    own = os.geteuid()
    run = Path(f"/run/user/{own}")
    folder = run / "cellwall-ids" if os.access(run, os.W_OK) else Path(f"/tmp/.cellwall-ids-{own}")  # noqa: S108
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise HostUnsupported(
            "subordinate ids",
            f"make {folder}: {error.strerror}",
            remedy="make the folder above it writable",
            errno=error.errno,
        ) from error
    if found.st_uid != own or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise HostUnsupported(
            "subordinate ids",
            f"lock ids in {folder}: it is not this user's alone",
            remedy="have it removed",
        )
    return folder
