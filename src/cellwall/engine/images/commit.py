"""What a sandbox on an image has become is made an image: one layer, and a configuration.

Used by `builder`. The layer is written by a process in the sandbox (`guest.files.snapshot`); here
its bytes are counted and hashed, and never read. The invariant: a layer from a sandbox is a
stranger's, and is unpacked as any (`jail.unpack`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.images.image import (
    Image,
    ImageConfig,
    ImageInvalid,
    Layer,
    machine_architecture,
    read_config,
)

if TYPE_CHECKING:
    from cellwall.engine.images.image_store import ImageStore, StoredImage
    from cellwall.engine.sandbox import AsyncSandbox

MOST_LAYER_BYTES = 20 << 30
"""Largest root that becomes an image, in bytes as a tar."""


@dataclass(frozen=True, slots=True)
class Committed:
    """How a committed image is called, and how it came about."""

    name: str | None = None
    history: Sequence[str] = ()
    """The instructions, the oldest first."""
    most_bytes: int = MOST_LAYER_BYTES


async def commit(
    store: ImageStore, folder: Path, sandbox: AsyncSandbox, config: ImageConfig, how: Committed
) -> StoredImage:
    """Make an image of a sandbox's root, which ends the sandbox's processes.

    `config` says the new image's environment, user and command; its digest is not looked at.
    Its layers are those below the new one if the sandbox shows what it has changed; otherwise the
    image has one layer, the whole root. `folder` holds the layer meanwhile. Raises ImageInvalid,
    FileError, SandboxBroken.
    """
    image = sandbox.live.spec.image
    is_part = image is not None and image.shows_changes
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as place:
        path = Path(place) / "layer.tar"
        layer = await _layer(sandbox, path, how.most_bytes)
        diff_ids = [*(config.diff_ids if is_part else ()), layer.diff_id]
        said = read_config(config_document(config, diff_ids, how.history))
        return await store.add(Image(said, (layer,)), how.name)


async def _layer(sandbox: AsyncSandbox, path: Path, most_bytes: int) -> Layer:
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        async with contextlib.aclosing(sandbox.files.stream_root()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > most_bytes:
                    raise ImageInvalid(
                        f"image: its root has more than {most_bytes} bytes",
                        remedy="remove what the image does not need",
                    )
                digest.update(piece)
                await asyncio.to_thread(file.write, piece)
    return Layer(f"sha256:{digest.hexdigest()}", "none", path, 0, size)


def config_document(config: ImageConfig, diff_ids: Sequence[str], history: Sequence[str]) -> bytes:
    """Return an image's configuration, of which the digest is the image's id (config.md)."""
    own = {
        "Env": [f"{name}={value}" for name, value in config.environment.items()],
        "WorkingDir": config.working_dir,
        "User": config.user,
        "Entrypoint": list(config.entrypoint) or None,
        "Cmd": list(config.command) or None,
        **({"Labels": dict(config.labels)} if config.labels else {}),
    }
    found = {
        "architecture": machine_architecture(),
        "os": "linux",
        "config": own,
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [{"created_by": each} for each in history],
    }
    return json.dumps(found, sort_keys=True).encode()
