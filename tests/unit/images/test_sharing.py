"""Which images share files, what they take together, and which of them can go."""

from __future__ import annotations

from pathlib import Path

from cellwall.engine.images import sharing
from cellwall.engine.images.image_store import StoredImage
from cellwall.images.image import Image, ImageConfig, Layer
from cellwall.runtimes.roots import ImageAccounts

NOBODY = ImageAccounts({}, {})


def stored(name: str, layers: str, size: int, own: int, below: str = "") -> StoredImage:
    config = ImageConfig(name, tuple(layers))
    return StoredImage(config, NOBODY, (), size, 1, False, {"devices": 1}, 0.0, own, below)


BASE = stored("base", "a", 100, 100)
STEP = stored("step", "ab", 110, 10, "base")
TOP = stored("top", "abc", 115, 5, "step")
OTHER = stored("other", "x", 50, 50)


def image(layers: str, brought: int) -> Image:
    made = tuple(Layer(name, "none", Path(name)) for name in layers[len(layers) - brought :])
    return Image(ImageConfig("new", tuple(layers)), made)


def names(found: list[StoredImage]) -> list[str]:
    return [each.digest for each in found]


def test_an_image_is_unpacked_over_the_one_with_most_of_its_layers() -> None:
    here = [OTHER, BASE, STEP]
    assert names(sharing.fitting(image("abz", 3), here)) == ["step", "base"]
    assert names(sharing.fitting(image("abz", 1), here)) == ["step"]
    assert names(sharing.fitting(image("ab", 0), here)) == ["step"]
    assert names(sharing.fitting(image("zab", 3), here)) == []
    assert names(sharing.fitting(image("a", 1), [STEP])) == []
    missing = sharing.above(image("abz", 3), BASE).layers
    assert [each.diff_id for each in missing] == ["b", "z"]
    assert sharing.above(image("ab", 2), STEP).layers == ()


def test_what_is_shared_counts_once() -> None:
    assert sharing.total_bytes([BASE, STEP, TOP, OTHER]) == 165
    assert sharing.total_bytes([STEP, OTHER]) == 160


def test_what_lies_over_one_that_goes_lies_over_the_one_below() -> None:
    (top,) = sharing.without(STEP, [BASE, STEP, TOP, OTHER])
    assert (top.digest, top.below, top.own_bytes) == ("top", "base", 15)
    assert sharing.total_bytes([BASE, top]) == 115
    (step,) = sharing.without(BASE, [STEP, TOP])
    assert (step.below, step.own_bytes) == ("", 110)
    assert sharing.total_bytes([step, TOP]) == 115


def test_only_images_below_no_other_one_go() -> None:
    assert names(sharing.outermost([BASE, STEP, TOP, OTHER], set())) == ["top", "other"]
    assert names(sharing.outermost([BASE, STEP, TOP, OTHER], {"top", "other"})) == []
    assert names(sharing.outermost([BASE, STEP], {"base"})) == ["step"]


def test_what_was_left_out_below_counts() -> None:
    assert sharing.skipped({"devices": 2}, BASE) == {"devices": 3}
    assert sharing.skipped({"devices": 2}, None) == {"devices": 2}
