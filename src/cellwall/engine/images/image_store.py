"""The roots of images, `images/<id>` in the state directory: found, unpacked, listed, removed.

Used by the engine and by `cellwall images`. Where an image comes from is in `cellwall.images`, and
how it is unpacked in a runtime. The invariants: an image is unpacked once for all engines of this
state directory; one that an engine's sandbox uses is not removed; all together have the bytes that
the operator allows, or the one that came last is removed again.

    <id>/tree         the root, 0700 above it, files of ids from `uid_ranges.IMAGE_BASE` on
    <id>/image.json   what is known of it
    <id>/lock         locked, shared, by each engine that has used it (flock(2)); its time is that
                      of the last use
    names.json        which image a name of a registry or a daemon meant when it was brought here
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.engine.images import leftovers, sharing
from cellwall.images import archive, daemon, reference
from cellwall.images.image import Image, ImageConfig, ImageInvalid
from cellwall.model.errors import CapacityError, Conflict, HostUnsupported, NotFound, UsageError
from cellwall.runtimes.base import SweepReport
from cellwall.runtimes.roots import ImageAccounts, ImageBounds, ImageRoot, UnpacksImages

if TYPE_CHECKING:
    from cellwall.images.registry import OnBytes, Registries

_ROOT = "root"
_TRIES = 3
_IDS = 65_536
"""Number of ids that an image's files and processes may have."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image whose root is on this machine."""

    config: ImageConfig
    accounts: ImageAccounts
    names: tuple[str, ...]
    """What it was called when it was brought here."""
    size_bytes: int
    inodes: int
    has_python: bool
    skipped: Mapping[str, int]
    made_at: float
    """When it was unpacked, in seconds since the epoch."""
    own_bytes: int = 0
    """Bytes of its files that the image below has not."""
    below: str = ""
    """Id of the image over which it was unpacked, and with which it shares files; or empty."""

    @property
    def digest(self) -> str:
        """Id of the image: the digest of its configuration."""
        return self.config.digest


class ImageStore:
    """The images of one state directory."""

    def __init__(
        self,
        directory: Path,
        registries: Registries,
        unpacker: Callable[[], Awaitable[object]],
        bounds: ImageBounds | None = None,
        most_bytes: int = 0,
    ) -> None:
        """`unpacker` returns a runtime, which is asked if it unpacks images.

        `most_bytes`: of all images together; above it those go that were used least recently and
        are not in use. 0: no bound.
        """
        self._folder = directory / "images"
        self._registries = registries
        self._unpacker = unpacker
        self._bounds = bounds or ImageBounds()
        self._most_bytes = most_bytes
        self._known: dict[str, StoredImage] = {}
        self._locks: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self.gives_up: Callable[[str], bool] = lambda _digest: True
        """Gives up what this engine has ready on an image; False if a sandbox is on it."""
        self.kept: Callable[[], Collection[str]] = lambda: ()
        """Returns the ids of images that are to stay, although other images need room."""
        self._unpacking = asyncio.Lock()

    # -- use -------------------------------------------------------------------------------

    async def root(self, name: object, user: str | None = None) -> ImageRoot:
        """Return the root of an image, brought here and unpacked if necessary, for one user.

        `name` is what `reference.parse` takes. Nothing removes the image until `let_go` is called
        for it, as its sandbox is claimed by then. Raises UsageError, NotFound, ImageInvalid,
        CapacityError, HostUnsupported.
        """
        stored = await self._held(reference.parse(name))
        try:
            return _root_of(stored, str(self._path(stored.digest) / "tree"), user)
        except BaseException:
            self.let_go(stored.digest)
            raise

    def let_go(self, digest: str) -> None:
        """Take back one call of `root`."""
        self._uses[digest] -= 1

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """Yield a folder for layers that are made here; a sweep finds it after a kill."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _coming(self._folder) as folder:
            yield folder

    async def here(self, meant: reference.Reference) -> StoredImage | None:
        """Return the image that a name means, if it is here."""
        return await self._stored(meant)

    async def _held(self, meant: reference.Reference) -> StoredImage:
        for _ in range(_TRIES):
            stored = await self._stored(meant) or await self.bring(meant)
            if await self._hold(stored.digest):
                return stored
        raise CapacityError(
            f"image {_name_of(meant)}: it is removed as soon as it has come",
            retry_after_s=5,
            remedy="allow images more room: images_mb",
        )

    async def bring(
        self, meant: reference.Reference, on_bytes: OnBytes | None = None
    ) -> StoredImage:
        """Bring an image here, also if its name is known; unpack it unless it is there."""
        async with self._here(meant, on_bytes) as image:
            stored = self._find(image.config.digest) or await self._unpack(image)
        named = self._named(stored, meant)
        await self._make_room(named)
        return named

    async def add(self, image: Image, name: str | None = None) -> StoredImage:
        """Unpack an image that was made here, unless it is there; `name` means it from now on."""
        if name is not None:
            built_name(name)
        stored = self._find(image.config.digest) or await self._unpack(image)
        named = stored if name is None else self.name(stored, name)
        await self._make_room(named)
        return named

    def name(self, stored: StoredImage, name: str) -> StoredImage:
        """Have a name mean an image, and no other, from now on. Raises `UsageError`."""
        meant = built_name(name)
        for each in self.images():
            if str(meant) in each.names and each.digest != stored.digest:
                self._write(replace(each, names=tuple(n for n in each.names if n != str(meant))))
        return self._named(stored, meant)

    def get(self, digest: str) -> StoredImage | None:
        """Return the image with this id, if it is here."""
        return self._find(digest)

    async def _stored(self, meant: reference.Reference) -> StoredImage | None:
        """Return the image that a name meant before; an archive is looked into each time."""
        if isinstance(meant, reference.Archive):
            image = await asyncio.to_thread(archive.read_archive, meant.path)
            return self._find(image.config.digest)
        if isinstance(meant, reference.ById):
            return self._find(meant.digest)
        known = self._names().get(_name_of(meant))
        return None if known is None else self._find(known)

    @contextlib.asynccontextmanager
    async def _here(
        self, meant: reference.Reference, on_bytes: OnBytes | None
    ) -> AsyncIterator[Image]:
        """Yield an image with its layers in files, which are gone afterwards."""
        if isinstance(meant, reference.ById):
            raise NotFound(
                f"image {meant.digest}: there is none of that id here",
                remedy="bring it by its name; `cellwall images` lists what is here",
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if isinstance(meant, reference.Archive):
            yield await asyncio.to_thread(archive.read_archive, meant.path)
            return
        with _coming(self._folder) as folder:
            if isinstance(meant, reference.InDaemon):
                path = await asyncio.to_thread(daemon.saved, meant.name, folder)
                yield await asyncio.to_thread(archive.read_archive, path)
            else:
                from cellwall.images.registry import Pull  # most images come from archives

                yield await Pull(self._registries, meant, folder).image(on_bytes)

    async def _unpack(self, image: Image) -> StoredImage:
        runtime = await self._unpacker()
        if not isinstance(runtime, UnpacksImages):
            raise _no_runtime()
        digest = image.config.digest
        target = self._path(digest)
        async with self._unpacking, _unpacked_alone(target):
            if (known := self._find(digest)) is not None:
                return known
            tree = target / "tree"
            if tree.exists():  # its description was not written: nothing vouches for it
                await runtime.remove_image(tree)
            stored = await self._unpacked(runtime, image, tree)
            self._write(stored)
        return stored

    async def _unpacked(self, runtime: UnpacksImages, image: Image, tree: Path) -> StoredImage:
        """Unpack an image, over one that has its first layers if there is one."""
        below = await self._held_below(image)
        try:
            if below is None:
                found = await runtime.unpack_image(image, tree, self._bounds)
            else:
                lower = self._path(below.digest) / "tree"
                more = sharing.above(image, below)
                found = await runtime.unpack_image(more, tree, self._bounds, lower)
        finally:
            if below is not None:
                self.let_go(below.digest)
        return StoredImage(
            image.config,
            found.accounts,
            (),
            found.size_bytes,
            found.inodes,
            found.has_python,
            sharing.skipped(found.skipped, below),
            time.time(),
            found.own_bytes,
            "" if below is None else below.digest,
        )

    async def _held_below(self, image: Image) -> StoredImage | None:
        """Return the image over which one is unpacked, held until `let_go`; None: over none.

        Raises `ImageInvalid` if layers of the image itself are missing then.
        """
        for below in sharing.fitting(image, self.images()):
            if await self._hold(below.digest):
                return below
        if len(image.layers) < len(image.config.diff_ids):
            raise ImageInvalid(
                "image: the one that it was made of is gone", remedy="make it once more"
            )
        return None

    # -- what is here ----------------------------------------------------------------------

    def images(self) -> list[StoredImage]:
        """Return the images that are here, the newest first."""
        if not self._folder.is_dir():
            return []
        found = [self._find(f"sha256:{path.name}") for path in self._folder.iterdir()]
        here = [each for each in found if each is not None]
        return sorted(here, key=lambda each: each.made_at, reverse=True)

    async def remove(self, name: str) -> StoredImage:
        """Remove an image, by its id, the beginning of that, or a name it was brought by.

        Raises NotFound, and Conflict for one that an engine uses.
        """
        stored = self.find(name)
        await self._remove(stored, name)
        return stored

    async def _remove(self, stored: StoredImage, name: str) -> None:
        runtime = await self._unpacker()
        path = self._path(stored.digest)
        if not isinstance(runtime, UnpacksImages):
            raise _no_runtime()
        self._let_others(stored.digest, name)
        with _alone(path, name):
            for each in sharing.without(stored, self.images()):
                self._write(each)
            (path / "image.json").unlink()
            self._known.pop(stored.digest, None)
            await runtime.remove_image(path / "tree")
            shutil.rmtree(path)

    def _let_others(self, digest: str, name: str) -> None:
        """Give up this engine's lock; `Conflict` if one of its sandboxes is on the image."""
        if self._uses.get(digest) or not self.gives_up(digest):
            raise _in_use(name)
        if digest in self._locks:
            os.close(self._locks.pop(digest))

    async def _make_room(self, newest: StoredImage) -> None:
        """Remove images that were used least recently until the others have the room they may.

        Raises `CapacityError` if those in use leave no room for the newest, which then is removed.
        """
        if not self._most_bytes:
            return
        async with self._unpacking:
            kept = await asyncio.to_thread(self.kept)
            spared = {newest.digest, *kept}
            while not self._has_room():
                outermost = sharing.outermost(self.images(), spared)
                if not outermost:
                    break
                oldest = min(outermost, key=self.used_at)
                try:
                    await self._remove(oldest, oldest.digest)
                except Conflict:
                    spared.add(oldest.digest)
            else:
                return
            if newest.digest not in kept:
                with contextlib.suppress(Conflict):  # it was here before, and is in use
                    await self._remove(newest, newest.digest)
        raise CapacityError(
            f"image {newest.names[-1] if newest.names else newest.digest}: it has "
            f"{newest.size_bytes >> 20} MiB, and images may have {self._most_bytes >> 20} together",
            retry_after_s=60,
            remedy="end sandboxes on other images, or allow more: images_mb",
        )

    def _has_room(self) -> bool:
        return sharing.total_bytes(self.images()) <= self._most_bytes

    def used_at(self, stored: StoredImage) -> float:
        """Return when a sandbox was last made on an image, in seconds since the epoch."""
        try:
            return (self._path(stored.digest) / "lock").stat().st_mtime
        except FileNotFoundError:
            return stored.made_at

    def names_of(self, stored: StoredImage) -> list[str]:
        """Return the names of registries and daemons that mean this image now."""
        return [name for name, digest in self._names().items() if digest == stored.digest]

    def find(self, name: str) -> StoredImage:
        """Return the image that a word means. Raises NotFound."""
        bare = name.removeprefix("sha256:")
        fitting = [
            each
            for each in self.images()
            if name in each.names or (len(bare) >= 4 and each.digest[7:].startswith(bare))
        ]
        if len(fitting) != 1:
            how = "there is none of that name" if not fitting else "more than one has that name"
            raise NotFound(f"image {name}: {how}", remedy="`cellwall images` lists them")
        return fitting[0]

    async def sweep(self) -> SweepReport:
        """Remove what killed engines left."""
        runtime = await self._unpacker()
        if not isinstance(runtime, UnpacksImages):
            return SweepReport()
        return await leftovers.sweep(self._folder, runtime.remove_image)

    def close(self) -> None:
        """Let others remove the images that this engine used."""
        for fd in self._locks.values():
            os.close(fd)
        self._locks.clear()

    def _path(self, digest: str) -> Path:
        return self._folder / digest.removeprefix("sha256:")

    async def _hold(self, digest: str) -> bool:
        """Count one more use of an image; False if another engine has just removed it."""
        if digest not in self._locks:
            try:
                fd = await _locked(self._path(digest) / "lock")
            except FileNotFoundError:
                return False
            # The lock may be of a folder that was removed while we waited for it.
            path = self._path(digest) / "lock"
            if not _is_still(path, fd) or self._find(digest) is None or digest in self._locks:
                os.close(fd)
                return False
            self._locks[digest] = fd
        os.utime(self._locks[digest])
        self._uses[digest] = self._uses.get(digest, 0) + 1
        return True

    def _find(self, digest: str) -> StoredImage | None:
        if digest not in self._known:
            try:
                said = json.loads((self._path(digest) / "image.json").read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                return None
            self._known[digest] = _read(said)
        elif not (self._path(digest) / "image.json").exists():  # another engine has removed it
            del self._known[digest]
            return None
        return self._known[digest]

    def _write(self, stored: StoredImage) -> None:
        path = self._path(stored.digest) / "image.json"
        self._known[stored.digest] = stored
        _replace(path, asdict(stored))

    def _names(self) -> dict[str, str]:
        try:
            found = json.loads((self._folder / "names.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found if isinstance(found, dict) else {}

    def _named(self, stored: StoredImage, meant: reference.Reference) -> StoredImage:
        name = _name_of(meant)
        if not isinstance(meant, reference.Archive):
            _replace(self._folder / "names.json", {**self._names(), name: stored.digest})
        if name in stored.names:
            return stored
        named = replace(stored, names=(*stored.names, name))
        self._write(named)
        return named


def built_name(name: str) -> reference.InRegistry:
    """Return the name of an image that is built here. Raises `UsageError`."""
    meant = reference.parse(name)
    if not isinstance(meant, reference.InRegistry) or meant.digest:
        raise UsageError(
            f"image: {name[:120]!r} cannot name one that is built here",
            remedy="name it like `task` or `team/task:2`",
        )
    return meant


@contextlib.contextmanager
def _coming(folder: Path) -> Iterator[Path]:
    """Yield a new folder for layers, locked so that a sweep knows that it has an owner."""
    with contextlib.ExitStack() as held:
        # A sweep does not begin between the making of the folder and its lock.
        with leftovers.opened(folder) as whole:
            fcntl.flock(whole, fcntl.LOCK_SH)
            place = tempfile.TemporaryDirectory(prefix=leftovers.COMING, dir=folder)
            held.enter_context(place)
            fd = held.enter_context(leftovers.opened(Path(place.name)))
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield Path(place.name)


@contextlib.asynccontextmanager
async def _unpacked_alone(target: Path) -> AsyncIterator[None]:
    """Hold the lock of an image that is being unpacked; wait for another engine that does it."""
    while True:
        os.makedirs(target, mode=0o700, exist_ok=True)
        try:
            fd = await _locked(target / "lock", fcntl.LOCK_EX)
        except FileNotFoundError:  # another engine has removed the folder in this moment
            continue
        try:
            if _is_still(target / "lock", fd):
                yield
                return
        finally:
            os.close(fd)


def _is_still(path: Path, fd: int) -> bool:
    """Report whether a path is still the file that was opened: its folder may be removed."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


async def _locked(path: Path, how: int = fcntl.LOCK_SH) -> int:
    """Return a descriptor with a lock; wait for an engine that unpacks or removes the image."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.to_thread(fcntl.flock, fd, how)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _alone(path: Path, name: str) -> Iterator[None]:
    """Hold an image alone meanwhile; `Conflict` if an engine uses it."""
    with open(path / "lock", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(name) from None
        yield


def _in_use(name: str) -> Conflict:
    return Conflict(f"image {name}: an engine uses it", remedy="end its sandboxes first")


def _no_runtime() -> HostUnsupported:
    return HostUnsupported(
        "images",
        "image: no runtime here can unpack one",
        remedy="run `cellwall doctor`; the jail does it, as root",
    )


def _name_of(meant: reference.Reference) -> str:
    if isinstance(meant, reference.Archive):
        return meant.path.name
    if isinstance(meant, reference.InDaemon):
        return f"docker://{meant.name}"
    return meant.digest if isinstance(meant, reference.ById) else str(meant)


def _replace(path: Path, value: object) -> None:
    """Write a document whole or not at all."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.write_text(json.dumps(value), encoding="utf-8")
    made.replace(path)


def _read(said: dict[str, Any]) -> StoredImage:
    config, accounts = said["config"], said["accounts"]
    for name in ("diff_ids", "entrypoint", "command"):
        config[name] = tuple(config[name])
    users = {name: (uid, gid, home) for name, (uid, gid, home) in accounts["users"].items()}
    found = {"own_bytes": said["size_bytes"], **said, "names": tuple(said["names"])}
    found.update(config=ImageConfig(**config), accounts=ImageAccounts(users, accounts["groups"]))
    return StoredImage(**found)


def _root_of(stored: StoredImage, tree: str, user: str | None) -> ImageRoot:
    name, uid, gid, home = account(stored, user or stored.config.user or _ROOT)
    config = stored.config
    command = (*config.entrypoint, *config.command)
    return ImageRoot(
        digest=stored.digest,
        tree=tree,
        user=name,
        uid=uid,
        gid=gid,
        home=home,
        working_dir=config.working_dir,
        environment=config.environment,
        has_python=stored.has_python,
        command=command,
    )


def account(stored: StoredImage, user: str) -> tuple[str, int, int, str]:
    """Return name, user id, group id and home of an account: `name`, `id`, each with `:group`.

    The rules are those of `User` in config.md. Raises `UsageError` for one that is not there.
    """
    word, _, group = user.partition(":")
    accounts = stored.accounts
    if word in accounts.users:
        uid, gid, home = accounts.users[word]
        name = word
    elif word.isdecimal() and int(word) < _IDS:
        uid, gid, name, home = int(word), 0, word, "/"
        for known, (number, main, place) in accounts.users.items():
            if number == uid:
                gid, name, home = main, known, place
                break
    elif word == _ROOT:  # an image without /etc/passwd
        name, uid, gid, home = _ROOT, 0, 0, "/root"
    else:
        few = ", ".join(sorted(accounts.users)[:20])
        raise UsageError(
            f"user: the image has no {word[:80]!r}", remedy=f"its users: {few or 'none'}"
        )
    if group:
        gid = accounts.groups.get(group, int(group) if group.isdecimal() else -1)
        if not 0 <= gid < _IDS:
            raise UsageError(f"user: the image has no group {group[:80]!r}")
    return name, uid, gid, home
