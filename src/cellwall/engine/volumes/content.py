"""Files into volumes and out of them, without a sandbox of the caller's.

Each transfer has a sandbox of its own, in which the volume is mounted: the host opens no path
inside of a volume. Paths of a volume begin at its top, with or without a slash.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cellwall.model.errors import UsageError
from cellwall.model.files import FileEntry
from cellwall.model.volume import VolumeMount

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.parts.files import Files

_PLACE = "/volume"
_LIFE_S = 24 * 3600.0
_MOST_BYTES = 1 << 40
"""Most bytes of a directory that is copied out: what the largest volume may have."""


class Content:
    """What is in the volumes of one engine."""

    def __init__(self, engine: Engine, owner: str = "") -> None:
        """`owner`: the tenant whose volumes they are."""
        self._engine = engine
        self._owner = owner

    async def put(self, name: str, local: str | Path, path: str = "") -> None:
        """Copy a file or a directory of this machine into a volume, to `path`.

        An empty path, and one that ends with a slash, keeps the name of a file; a directory's
        content goes below it. Raises NotFound, Conflict if the volume is in use, UsageError,
        FileError.
        """
        source = Path(local)
        is_directory = await asyncio.to_thread(source.is_dir)
        async with self._files(name, read_only=False) as files:
            if is_directory:
                await files.upload_dir(source, _inside(path))
                return
            is_folder = not path.strip("/") or path.endswith("/")
            target = f"{path}/{source.name}" if is_folder else path
            await files.upload(source, _inside(target))

    async def get(self, name: str, path: str, local: str | Path) -> None:
        """Copy a file or a directory out of a volume, to `local`.

        Of a directory regular files and directories are copied, into a new or an empty one. Raises
        NotFound, Conflict if a sandbox writes to the volume, FileError.
        """
        async with self._files(name, read_only=True) as files:
            inner = _inside(path)
            if (await files.stat(inner)).type == "directory":
                await files.download_dir(inner, local, most_bytes=_MOST_BYTES)
            else:
                await files.download(inner, local)

    async def files(self, name: str, path: str = "") -> list[FileEntry]:
        """Return what is in a directory of a volume."""
        async with self._files(name, read_only=True) as files:
            return await files.list(_inside(path), limit=10_000)

    @asynccontextmanager
    async def _files(self, name: str, *, read_only: bool) -> AsyncIterator[Files]:
        volume = await asyncio.to_thread(self._engine.volumes.get, name, self._owner)
        sandbox = await self._engine.create_sandbox(
            limits={"life_s": _LIFE_S, "file_mb": volume.size_mb},
            volumes=[VolumeMount(name, _PLACE, read_only)],
            tenant=self._owner,
        )
        try:
            yield sandbox.files
        finally:
            await sandbox.close()


def _inside(path: str) -> str:
    """Return a path of a volume as its sandbox sees it; `UsageError` if it leads out of it."""
    if ".." in path.split("/"):
        raise UsageError(f"volume: {path!r} leads out of it", remedy="use a path without `..`")
    return posixpath.join(_PLACE, posixpath.normpath(path or ".").lstrip("/")).removesuffix("/.")
