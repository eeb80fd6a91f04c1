"""The files of a synchronous sandbox; the engine's `files` say what each call does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.embedded.part import Part

if TYPE_CHECKING:
    from pathlib import Path

    from cellwall.embedded.watches import SyncWatch
    from cellwall.engine.files import FileEntry
    from cellwall.engine.watches import Watch


class SyncFiles(Part):
    """File operations of one sandbox. Relative paths start at the working directory."""

    def read(self, path: str) -> str:
        """Return a file's content as text."""
        return self._do(lambda: self._inner.files.read(path))

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content."""
        return self._do(lambda: self._inner.files.read_bytes(path))

    def write(self, path: str, content: str | bytes, *, mode: int | None = None) -> int:
        """Write a whole file, parents included; return its size."""
        return self._do(lambda: self._inner.files.write(path, content, mode=mode))

    def append(self, path: str, content: str | bytes) -> None:
        """Append to a file, making it if need be."""
        self._do(lambda: self._inner.files.append(path, content))

    def stat(self, path: str) -> FileEntry:
        """Describe one file."""
        return self._do(lambda: self._inner.files.stat(path))

    def exists(self, path: str) -> bool:
        """Report whether there is something of that name."""
        return self._do(lambda: self._inner.files.exists(path))

    def list(self, path: str = ".", *, depth: int = 1, limit: int = 1000) -> list[FileEntry]:
        """List a directory."""
        return self._do(lambda: self._inner.files.list(path, depth=depth, limit=limit))

    def mkdir(self, path: str, *, parents: bool = True) -> None:
        """Make a directory."""
        self._do(lambda: self._inner.files.mkdir(path, parents=parents))

    def move(self, path: str, target: str) -> None:
        """Rename or move."""
        self._do(lambda: self._inner.files.move(path, target))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, an empty directory or a whole tree."""
        self._do(lambda: self._inner.files.remove(path, recursive=recursive))

    def upload_dir(self, local: str | Path, remote: str = ".") -> int:
        """Copy a directory of the caller's into the sandbox."""
        return self._do(lambda: self._inner.files.upload_dir(local, remote))

    def download_dir(self, remote: str, local: str | Path, *, most_bytes: int = 1 << 30) -> int:
        """Copy a directory out of the sandbox into a new or empty one."""
        return self._do(
            lambda: self._inner.files.download_dir(remote, local, most_bytes=most_bytes)
        )

    def watch(self, path: str = ".", *, recursive: bool = True) -> SyncWatch:
        """Return an iterator over the changes in a directory from now on; close it."""
        from cellwall.embedded.watches import SyncWatch

        return SyncWatch(
            self._runner, self._inner, self._do(lambda: self._watching(path, recursive))
        )

    async def _watching(self, path: str, recursive: bool) -> Watch:
        watch = self._inner.files.watch(path, recursive=recursive)
        await watch.start()
        return watch
