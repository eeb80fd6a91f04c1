"""Leftovers of engines that were killed while an image came: found by their locks, and removed.

Called by `image_store`. The invariant: what a living engine holds the lock of is not touched. Trees
are removed by the runtime; nothing here opens a path inside one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.base import SweepReport

COMING = ".coming-"
"""Begins the name of a folder with layers on their way, which its engine has locked."""
_ID = 64


async def sweep(folder: Path, remove_tree: Callable[[Path], Awaitable[None]]) -> SweepReport:
    """Remove what no engine holds any more below `folder`."""
    found, kept = {"image layers": _sweep_layers(folder), "unfinished images": 0}, []
    for path in _suspects(folder):
        try:
            found["unfinished images"] += await _sweep_image(path, remove_tree)
        except HostUnsupported as error:  # an ordinary user had ids for images, and has none now
            kept.append(f"unfinished image {path}: {error}")
    removed = {kind: count for kind, count in found.items() if count}
    return SweepReport(removed, tuple(kept))


def _sweep_layers(folder: Path) -> int:
    removed = 0
    with _alone(folder) as is_quiet:  # no engine makes one in this moment
        for path in folder.glob(f"{COMING}*") if is_quiet else []:
            with _alone(path) as is_ours:
                if is_ours:
                    shutil.rmtree(path, ignore_errors=True)
                    removed += 1
    return removed


def _suspects(folder: Path) -> list[Path]:
    """Return the folders of images that are not whole, or have more than one tree."""
    return [
        path
        for path in folder.glob("[0-9a-f]" * _ID)
        if not path.is_symlink() and path.is_dir() and _excess(path)
    ]


def _excess(path: Path) -> list[Path]:
    """Return what of an image's folder is to be removed; its lock, if nothing vouches for it."""
    parts = list(path.glob("tree.partial-*"))
    if (path / "image.json").exists():
        return parts
    (path / "lock").touch(0o600)
    return [*parts, *path.glob("tree"), path / "lock"]


async def _sweep_image(path: Path, remove_tree: Callable[[Path], Awaitable[None]]) -> int:
    with _alone(path / "lock") as is_ours:
        if not is_ours:
            return 0
        excess = _excess(path)  # it may have been finished meanwhile
        for each in excess:
            if each.name != "lock":
                await remove_tree(each)
        if path / "lock" in excess:
            shutil.rmtree(path)
    return 1


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Lock a file or folder; yield whether no other process had it locked."""
    with contextlib.ExitStack() as held:
        try:
            fcntl.flock(held.enter_context(opened(path)), fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        yield is_ours


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor of a file or folder of ours, by which it may be locked."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)
