"""Which image shares files with which: one with all layers of another one is unpacked over it.

Used by `image_store`. Pure. What is shared are hard links, so an image needs no other one to be
there: one that goes leaves its files to those that share them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.engine.images.image_store import StoredImage
    from cellwall.images.image import Image


def fitting(image: Image, stored: Iterable[StoredImage]) -> list[StoredImage]:
    """Return the images over which this one may be unpacked, that with most layers first.

    They have its first layers, and it brings those above them.
    """
    wanted, brought = image.config.diff_ids, len(image.layers)
    found = [
        each
        for each in stored
        if (shared := each.config.diff_ids)
        and wanted[: len(shared)] == shared
        and len(wanted) - len(shared) <= brought
    ]
    return sorted(found, key=lambda each: len(each.config.diff_ids), reverse=True)


def above(image: Image, below: StoredImage) -> Image:
    """Return an image with those of its layers that `below` has not."""
    missing = len(image.config.diff_ids) - len(below.config.diff_ids)
    return replace(image, layers=image.layers[len(image.layers) - missing :])


def outermost(images: Sequence[StoredImage], spared: Collection[str]) -> list[StoredImage]:
    """Return the images, but for those spared, that are below no other one.

    What is below another one would give little room back: its files are the other one's, too.
    """
    below = {each.below for each in images}
    return [each for each in images if each.digest not in below and each.digest not in spared]


def without(gone: StoredImage, images: Iterable[StoredImage]) -> list[StoredImage]:
    """Return the images over one that goes, as they are without it: over the one below that."""
    return [
        replace(
            each,
            below=gone.below,
            own_bytes=min(each.size_bytes, each.own_bytes + gone.own_bytes),
        )
        for each in images
        if each.below == gone.digest
    ]


def total_bytes(images: Sequence[StoredImage]) -> int:
    """Return what images take on disk: what is shared counts once, with the image below.

    Without any below, each of those that share its files counts whole.
    """
    here = {each.digest for each in images}
    return sum(each.own_bytes if each.below in here else each.size_bytes for each in images)


def skipped(found: Mapping[str, int], below: StoredImage | None) -> Mapping[str, int]:
    """Return what was left out of an image, with what was left out of the one below it."""
    if below is None:
        return found
    return {name: count + below.skipped.get(name, 0) for name, count in found.items()}
