"""Volumes for synchronous programs: `Volumes().create("data")`, and files in and out of them.

Each call is passed to the engine that `run` and `Sandbox` use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cellwall.embedded.on_engine import OnEngine

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine
    from cellwall.engine.volumes.content import Content
    from cellwall.model.files import FileEntry
    from cellwall.model.volume import Volume

T = TypeVar("T")


class Volumes(OnEngine):
    """The volumes of this machine; a sandbox gets one by `Sandbox(volumes={"data": "/data"})`."""

    def create(self, name: str, size_mb: int = 1024, inodes: int | None = None) -> Volume:
        """Make an empty volume of `size_mb` MiB.

        `inodes`: number of files and directories that it may have, by default one for each 16 KiB;
        rounded up to whole blocks, the answer says to what. Raises UsageError, Conflict if the
        name is taken, HostUnsupported, CapacityError.
        """
        return self._threaded(lambda engine: engine.volumes.create(name, size_mb, inodes))

    def all(self) -> Sequence[Volume]:
        """Return the volumes, by name."""
        return self._threaded(lambda engine: engine.volumes.volumes())

    def get(self, name: str) -> Volume:
        """Return a volume. Raises NotFound."""
        return self._threaded(lambda engine: engine.volumes.get(name))

    def copy(self, source: str, name: str) -> Volume:
        """Make a volume with the content that another has now.

        Raises NotFound, and Conflict if a sandbox writes to the source, or the name is taken.
        """
        return self._threaded(lambda engine: engine.volumes.copy(source, name))

    def remove(self, name: str) -> None:
        """Remove a volume and all that is in it. Raises NotFound, Conflict if it is in use."""
        self._threaded(lambda engine: engine.volumes.remove(name))

    def put(self, name: str, local: str | Path, path: str = "") -> None:
        """Copy a file or a directory of this machine into a volume; see `Content.put`."""
        self._call(lambda engine: _content(engine).put(name, local, path))

    def fetch(self, name: str, path: str, local: str | Path) -> None:
        """Copy a file or a directory out of a volume; see `Content.get`."""
        self._call(lambda engine: _content(engine).get(name, path, local))

    def files(self, name: str, path: str = "") -> Sequence[FileEntry]:
        """Return what is in a directory of a volume."""
        return self._call(lambda engine: _content(engine).files(name, path))

    def _threaded(self, work: Callable[[Engine], T]) -> T:
        return self._call(lambda engine: asyncio.to_thread(work, engine))


def _content(engine: Engine) -> Content:
    from cellwall.engine.volumes.content import Content

    return Content(engine)
