"""The host's half of `jail.unpack`: an image's layers become a root on disk, or nothing.

Runs in the engine process. The invariants: a tree has its name only once it is whole; what a broken
or hostile image leaves is removed; what the process inside says is checked for shape and bounds,
and believed no more than the image.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import stat
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cellwall.images.image import Image, ImageInvalid
from cellwall.jail.plan import image_plan
from cellwall.jail.protocol import fds
from cellwall.linux import seccomp, uid_ranges
from cellwall.linux.removal import remove_tree
from cellwall.model.errors import CellwallError, HostUnsupported, SandboxBroken
from cellwall.model.shortage import shortage
from cellwall.runtimes.jail.starting.bundle import bundle_in
from cellwall.runtimes.roots import ImageAccounts, ImageBounds, UnpackedImage
from cellwall.runtimes.shared import helper_process
from cellwall.runtimes.shared.helper_process import HelperProcess

_LAYERS_A_MESSAGE = 10
_EARLY_S = 0.1
"""Seconds between two times at which what was unpacked is written to the disk."""
_MOST_ANSWER_BYTES = 256 * 1024
_MOST_PATH = 256
_NAME = re.compile(r"[^\x00-\x1f:]{1,256}")
_BOUND_REMEDY = "use a smaller image, or raise the operator's bound"


class _Folders(NamedTuple):
    """The folders of an image that is being unpacked; all lie in that of the image."""

    tree: Path
    """What will be the image's root."""
    over: Path
    """What changes, and the overlay's own, if the image is unpacked over another one."""
    below: Path | None
    """The root of that one."""

    def told(self) -> dict[str, Any]:
        """Return what the process that unpacks is told of them, as paths below `images`."""
        images = self.tree.parent.parent

        def name(path: Path) -> str:
            return str(path.relative_to(images))

        tops = [self.tree] if self.below is None else [self.tree, self.over / "upper"]
        return {
            "images": str(images),
            "tree": name(self.tree),
            "over": name(self.over),
            "tops": [name(each) for each in tops],
            "lower": "" if self.below is None else name(self.below),
        }


class Unpacker:
    """Unpacks and removes images, as root or as an ordinary user with ids for them."""

    def __init__(self, state_dir: Path, ids: uid_ranges.Ids) -> None:
        """Raise HostUnsupported if there are no ids for images."""
        if ids.rootless and ids.of_images is None:
            raise uid_ranges.too_few_for_images(ids)
        self._state_dir, self._ids = state_dir, ids

    async def unpack(
        self, image: Image, target: Path, bounds: ImageBounds, below: Path | None = None
    ) -> UnpackedImage:
        """Unpack an image to `target`, which does not exist yet.

        `below`: the tree of an image that has the same layers but for `image.layers`, which are
        unpacked over it; what they leave as it is is shared, as hard links. Raises ImageInvalid,
        HostUnsupported, CapacityError, SandboxBroken.
        """
        partial = f"{target.name}.partial-{os.getpid()}-{os.urandom(4).hex()}"
        folders = _Folders(target.with_name(partial), target.with_name(f"{partial}-over"), below)
        try:
            unpacked = await self._unpacked(folders, image, bounds)
            folders.tree.rename(target)
        except OSError as error:
            raise _explained(error, "unpack it") from error
        finally:
            for each in (folders.tree, folders.over):
                if each.exists():
                    await self.remove(each)
        return unpacked

    async def _unpacked(
        self, folders: _Folders, image: Image, bounds: ImageBounds
    ) -> UnpackedImage:
        self._make(folders)
        started = helper_process.start(bundle_in(self._state_dir), ["unpack"])
        request = {**folders.told(), **self._request(bounds), **_of_image(image)}
        try:
            async with asyncio.timeout(bounds.timeout_s):
                talk = asyncio.to_thread(_talk, started, image, request)
                unpacked = await _written_meanwhile(folders.tree.parent, talk)
            await asyncio.to_thread(_synced, folders.tree.parent)
        except TimeoutError:
            raise ImageInvalid(
                f"image: unpacking took more than {bounds.timeout_s:g} s", remedy=_BOUND_REMEDY
            ) from None
        finally:
            started.end()
        return unpacked

    def _make(self, folders: _Folders) -> None:
        """Make the folders; those of an ordinary user get their ids from the process."""
        below = folders.below
        tops = [folders.tree] if below is None else [folders.tree, folders.over / "upper"]
        mode = 0o755 if below is None else stat.S_IMODE(below.lstat().st_mode)
        for each in tops:
            each.mkdir(parents=True)
            each.chmod(mode)
            if not self._ids.rootless:
                os.chown(each, uid_ranges.IMAGE_BASE, uid_ranges.IMAGE_BASE)
        if below is not None:
            (folders.over / "work").mkdir(mode=0o700)

    def _request(self, bounds: ImageBounds) -> dict[str, Any]:
        program = seccomp.compile_policy(seccomp.load_policy(), os.uname().machine)
        images = self._ids.of_images
        return {
            "outer": None if images is None else images.as_json(),
            # An ordinary user's own id is the first in the namespace of the process.
            "base": uid_ranges.IMAGE_BASE if images is None else 1,
            "ids": self._ids.image_lines,
            "remove": [],
            "count": 0,
            "most_bytes": bounds.most_bytes,
            "most_inodes": bounds.most_inodes,
            "most_ratio": bounds.most_ratio,
            "cpu_s": int(bounds.timeout_s) + 1,
            "seccomp": program.hex(),
        }

    async def remove(self, tree: Path) -> None:
        """Remove an unpacked image, or what is left of one. Raises HostUnsupported."""
        if not self._ids.rootless:
            await asyncio.to_thread(remove_tree, str(tree))
            return
        request = {
            **self._request(ImageBounds()),
            "images": str(tree.parent.parent),
            "remove": [f"{tree.parent.name}/{tree.name}"],
        }
        started = helper_process.start(bundle_in(self._state_dir), ["unpack"])
        try:
            _raised(await asyncio.to_thread(_asked, started, request))
        finally:
            await asyncio.to_thread(started.end)


async def _written_meanwhile(
    folder: Path, work: Coroutine[Any, Any, UnpackedImage]
) -> UnpackedImage:
    """Await `work`, and have the kernel write what is there already, again and again.

    The disk would have nothing to do while a processor unpacks, and all of it afterwards.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=_EARLY_S))[0]:
            await asyncio.to_thread(_synced, folder)
        return task.result()
    finally:
        task.cancel()


def _synced(folder: Path) -> None:
    """Have the kernel write the tree to its disk: a name must not outlive content. syncfs(2).

    `folder` is that of the image: its root may be closed to us.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Not by `linux.syscalls`, which holds the interpreter's lock meanwhile.
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            raise OSError(ctypes.get_errno(), "syncfs")
    finally:
        os.close(fd)


def _explained(error: OSError, step: str) -> CellwallError:
    short = shortage(error.errno, f"image: {step}", error, on_disk=True)
    return short or HostUnsupported(
        "images",
        f"image: {step}: {error}",
        remedy="keep the state directory on a local file system with room",
        errno=error.errno,
    )


def _asked(started: HelperProcess, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Send a request and return its answer; in a thread, since both may wait."""
    try:
        fds.send_message(started.control, dict(request))
    except fds.ControlClosed as error:
        raise SandboxBroken(f"image: the process that removes is gone ({error})") from error
    return _answer(started)


def _talk(started: HelperProcess, image: Image, request: Mapping[str, Any]) -> UnpackedImage:
    """Send the request and return the answer; in a thread, since both may wait."""
    try:
        with contextlib.ExitStack() as held:
            fds.send_message(started.control, dict(request))
            for message, files in _messages(image, held):
                fds.send_message(started.control, message, files)
            unpacked = _checked(_answer(started))
        if not request["lower"]:
            return unpacked
        fds.send_message(started.control, {"merge": True})
        return _counted(unpacked, _answer(started))
    except fds.ControlClosed as error:
        raise SandboxBroken(f"image: the process that unpacks is gone ({error})") from error


def _answer(started: HelperProcess) -> Mapping[str, Any]:
    said = started.control.recv(_MOST_ANSWER_BYTES)
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SandboxBroken("image: the process that unpacks ended without a word")
    return found


def _of_image(image: Image) -> dict[str, Any]:
    return {
        "count": len(image.layers),
        "directories": image_plan.MADE,
        "working_dir": image.config.working_dir,
    }


def _messages(
    image: Image, held: contextlib.ExitStack
) -> Iterator[tuple[dict[str, Any], list[int]]]:
    for at in range(0, len(image.layers), _LAYERS_A_MESSAGE):
        some = image.layers[at : at + _LAYERS_A_MESSAGE]
        files = []
        for layer in some:
            files.append(os.open(layer.path, os.O_RDONLY | os.O_CLOEXEC))
            held.callback(os.close, files[-1])
        described = [
            {
                "diff_id": layer.diff_id,
                "compression": layer.compression,
                "offset": layer.offset,
                "size": layer.size,
            }
            for layer in some
        ]
        yield {"layers": described}, files


def _raised(answer: Mapping[str, Any]) -> None:
    """Raise the error that an answer tells, if it tells one."""
    problem, code = answer.get("error"), answer.get("code")
    if problem is not None:
        what = f"image: unpack it: {str(problem)[:1000]}"
        number = answer.get("errno")
        if code == "system" and isinstance(number, int):
            raise _explained(OSError(number, str(problem)[:1000]), "unpack it")
        if code == "bound":
            raise ImageInvalid(what, remedy=_BOUND_REMEDY)
        if code == "ids":
            raise ImageInvalid(what, remedy=uid_ranges.MORE_FOR_IMAGES)
        if code in {"invalid", "unsupported"}:
            raise ImageInvalid(what, remedy="make the image again, with gzip or uncompressed")
        raise SandboxBroken(what)


def _counted(unpacked: UnpackedImage, answer: Mapping[str, Any]) -> UnpackedImage:
    """Return what an image has that shares files with another."""
    _raised(answer)
    try:
        size, own = _number(answer["bytes"]), _number(answer["own_bytes"])
        inodes = _number(answer["inodes"])
    except (KeyError, ValueError) as error:
        raise SandboxBroken(f"image: the process that unpacks said nonsense ({error})") from error
    return replace(unpacked, size_bytes=size, own_bytes=own, inodes=inodes)


def _checked(answer: Mapping[str, Any]) -> UnpackedImage:
    """Return the answer as a value, or raise the error that it tells."""
    _raised(answer)
    try:
        return UnpackedImage(
            _number(answer["bytes"]),
            _number(answer["bytes"]),
            _number(answer["inodes"]),
            {str(name): _number(count) for name, count in dict(answer["skipped"]).items()},
            ImageAccounts(_users(answer["users"]), _groups(answer["groups"])),
            answer["has_python"] is True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SandboxBroken(f"image: the process that unpacks said nonsense ({error})") from error


def _number(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError("not a number")
    return value


def _id(value: object) -> int:
    number = _number(value)
    if number >= image_plan.IDS:
        raise ValueError("not an id of an image")
    return number


def _users(value: Any) -> dict[str, tuple[int, int, str]]:  # noqa: ANN401 - JSON
    found = {}
    for name, (uid, gid, home, _shell) in dict(value).items():
        if _NAME.fullmatch(name) and uid < image_plan.IDS and gid < image_plan.IDS:
            found[name] = (_id(uid), _id(gid), _home(str(home)))
    return found


def _home(path: str) -> str:
    is_path = path.startswith("/") and "\0" not in path and len(path) <= _MOST_PATH
    return path if is_path else "/"


def _groups(value: Any) -> dict[str, int]:  # noqa: ANN401 - JSON
    listed = dict(value).items()
    return {
        name: _id(gid) for name, gid in listed if _NAME.fullmatch(name) and gid < image_plan.IDS
    }
