"""Continuing: how a keeper starts a sandbox from an image in place of a bundle; pure but one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import Conflict
from cellwall.runtimes.gvisor.trees import saved_area

if TYPE_CHECKING:
    import socket

    from cellwall.runtimes.gvisor.keeper import Keeper
    from cellwall.runtimes.shared.saved_tree import SavedTree


def lineage(binary: str, platform: str, digest: str) -> str:
    """Return what a copy must have in common with its source."""
    return f"gvisor {binary[:16]} {platform} {digest}"


def check_lineage(saved: SavedTree, own: str) -> None:
    """Raise Conflict if an image came from another configuration than a sandbox has now."""
    if saved.lineage != own:
        raise Conflict(
            "restore: this host's runsc, template or system files have changed since",
            remedy="make the session again",
        )


def restoring(order: dict[str, Any], place: str) -> dict[str, Any]:
    """Return an order to continue a sandbox in place of an order to start one."""
    words: list[str] = order["words"]
    at = words.index("run")
    told = f"--image-path={saved_area.image_of(place)}"
    return {**order, "words": [*words[:at], "restore", told, *words[at + 1 :]], "is_saved": True}


def begun_from(keeper: Keeper, order: dict[str, Any], saved: SavedTree) -> socket.socket:
    """Have a keeper begin with files of its own to read, from their beginning."""
    files = [
        os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        for fd in (saved.archive, *saved.image)
    ]
    try:
        return keeper.begin(order, files)
    finally:
        for fd in files:
            os.close(fd)
