"""Runtime contract, the part of images and volumes: what a sandbox may see besides a template.

It goes with `base`, the contract of every runtime. The invariant: a runtime that cannot give a
sandbox one of these refuses (`base.refuse_image`, `base.refuse_volumes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from cellwall.images.image import Image


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """Most that an image may have, and take to unpack."""

    most_bytes: int = 20 << 30
    most_inodes: int = 2_000_000
    most_ratio: int = 200
    """Bytes of a layer for each byte of it compressed."""
    timeout_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class ImageAccounts:
    """The accounts of an image, as its own files list them."""

    users: Mapping[str, tuple[int, int, str]]
    """User id, group id and home directory, by name."""
    groups: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UnpackedImage:
    """An image's root on disk, and what was found in it."""

    size_bytes: int
    own_bytes: int
    """Bytes of files that it shares with no other image."""
    inodes: int
    skipped: Mapping[str, int]
    """Number of devices that were not made, and of files whose extended attributes were not."""
    accounts: ImageAccounts
    has_python: bool


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """The root of an image, unpacked, and what its configuration and the caller decide of it."""

    digest: str
    """Digest of the image's manifest."""
    tree: str
    """Path of the root on the host; its files belong to ids from `uid_ranges.IMAGE_BASE` on."""
    user: str
    """Name of the user, or its number where it has none."""
    uid: int
    gid: int
    home: str
    """Home directory of the user, inside."""
    working_dir: str
    """Directory in which programs start, inside."""
    environment: Mapping[str, str]
    """Variables that the image sets for every process."""
    has_python: bool = True
    """Whether the image has a Python 3 for contexts; otherwise a sandbox is shown one."""
    command: tuple[str, ...] = ()
    """Program and arguments that the image starts if its caller names none."""
    shows_changes: bool = False
    """Whether what a sandbox changes is to be read in it, because an image is made of it. A runtime
    that cannot show it refuses."""


@dataclass(frozen=True, slots=True)
class VolumeRoot:
    """A volume of this machine, and where a sandbox is to see it."""

    name: str
    path: str
    """Absolute path of the directory inside; `model.volume` has checked it."""
    read_only: bool
    folder: str
    """Path of the volume on the host, with its file and its locks (`runtimes.volumes`)."""


@runtime_checkable
class UnpacksImages(Protocol):
    """A runtime that makes roots of images."""

    async def unpack_image(
        self, image: Image, target: Path, bounds: ImageBounds, below: Path | None = None
    ) -> UnpackedImage:
        """Unpack an image to `target`, in a jail. Raises ImageInvalid, HostUnsupported.

        `below`: the tree of an image that has all of its layers but `image.layers`.
        """

    async def remove_image(self, tree: Path) -> None:
        """Remove an unpacked image, or what is left of one."""


@runtime_checkable
class PreparesVolumes(Protocol):
    """A runtime that can make ready for the first volume."""

    async def prepare_volumes(self) -> None:
        """Make ready, where this host has volumes at all."""
