"""What of a sandbox's root comes from elsewhere than its template: an image, and volumes.

Used by the engine before a sandbox is claimed. The stores are asked for only where a caller names
an image or a volume. The invariant: an image is held until the pool counts the sandbox on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError

if TYPE_CHECKING:
    from cellwall.engine.images.image_store import ImageStore
    from cellwall.engine.volumes.volume_store import VolumeStore
    from cellwall.runtimes.base import SandboxSpec
    from cellwall.runtimes.roots import ImageRoot


@asynccontextmanager
async def on_image(
    store: Callable[[], ImageStore],
    spec: SandboxSpec,
    image: str | ImageRoot | None,
    user: str | None,
    packages: Sequence[str],
) -> AsyncIterator[SandboxSpec]:
    """Yield `spec` with the root of an image, or as it is without one.

    Raises UsageError for what a sandbox on an image cannot be, and what `ImageStore.root` raises.
    """
    if image is None:
        if user is not None:
            raise UsageError("user: it is one of an image", remedy="name an image, too")
        yield spec
        return
    from cellwall.runtimes.roots import ImageRoot  # most sandboxes have the root of a template

    if isinstance(image, ImageRoot):  # its owner vouches for it
        yield _rooted(spec, image, packages)
    else:
        root = await store().root(image, user)
        try:
            yield _rooted(spec, root, packages)
        finally:
            store().let_go(root.digest)


def _rooted(spec: SandboxSpec, root: ImageRoot, packages: Sequence[str]) -> SandboxSpec:
    found = replace(spec, image=root, contexts=())
    if packages:
        check_packages_root(found)
    if found.start != "fork":
        raise UsageError(
            f"start: {found.start!r} is a way to start a template's interpreter",
            remedy="leave it out: an image's interpreter is always started by exec",
        )
    return found


def check_packages_root(spec: SandboxSpec) -> None:
    """Raise `UsageError` for a sandbox on an image: the installer is a template's."""
    if spec.image is not None:
        raise UsageError(
            "packages: they are installed into a template's environment, and this is an image",
            remedy="run the image's own pip in it, with network='packages'",
        )


def with_volumes(
    store: Callable[[], VolumeStore], spec: SandboxSpec, volumes: object, tenant: str
) -> SandboxSpec:
    """Return `spec` with the tenant's volumes that are named. Raises UsageError, NotFound."""
    if not volumes:
        return spec
    from cellwall.model.volume import mounts_of  # most sandboxes have none

    return replace(spec, volumes=store().attached(mounts_of(volumes), tenant))
