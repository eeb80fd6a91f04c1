"""The files of a synchronous sandbox; the asynchronous `files` say what each call does."""

from __future__ import annotations

import builtins
import contextlib
from typing import TYPE_CHECKING, Literal, overload

from cellwall.model.errors import SandboxUnavailable
from cellwall.surface.sync.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cellwall.model.files import FileEntry
    from cellwall.model.history import Checkpoint, FileChange, Rollback
    from cellwall.surface.shared.callbacks import OnProgress
    from cellwall.surface.sync.loop_thread import Put
    from cellwall.surface.sync.protocols import AnyWatch
    from cellwall.surface.sync.watches import SyncWatch


class SyncFiles(Part):
    """File operations of one sandbox. Relative paths start at the working directory."""

    @overload
    def read(self, path: str, *, text: Literal[True] = True) -> str: ...
    @overload
    def read(self, path: str, *, text: Literal[False]) -> bytes: ...
    def read(self, path: str, *, text: bool = True) -> str | bytes:
        """Return a file's content, decoded as UTF-8 (bad bytes replaced) or as bytes."""
        data = self.read_bytes(path)
        return data.decode("utf-8", "replace") if text else data

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content."""
        return self._do(lambda: self._inner.files.read_bytes(path))

    def write(
        self,
        path: str,
        content: str | bytes,
        *,
        mode: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Write a whole file, parents included; return its size."""
        return self._do(
            lambda: self._inner.files.write(path, content, mode=mode, metadata=metadata)
        )

    async def aread_bytes(self, path: str) -> bytes:
        """Do what `read_bytes` does for a caller on an event loop, which goes on meanwhile."""
        return await self._ado(lambda: self._inner.files.read_bytes(path))

    async def awrite(
        self,
        path: str,
        content: str | bytes,
        *,
        mode: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Do what `write` does for a caller on an event loop, which goes on meanwhile."""
        return await self._ado(
            lambda: self._inner.files.write(path, content, mode=mode, metadata=metadata)
        )

    def append(self, path: str, content: str | bytes) -> None:
        """Append to a file, making it if need be."""
        self._do(lambda: self._inner.files.append(path, content))

    def stat(self, path: str) -> FileEntry:
        """Describe one file."""
        return self._do(lambda: self._inner.files.stat(path))

    def exists(self, path: str) -> bool:
        """Report whether an entry of that name exists."""
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

    def upload(
        self,
        local: str | Path,
        remote: str,
        *,
        mode: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Copy a file of the caller's into the sandbox; return its size."""
        return self._thread.call(
            lambda _subject, put: self._inner.files.upload(
                local, remote, mode=mode, on_progress=_putting(put, on_progress)
            ),
            _told(on_progress),
        )

    def download(
        self, remote: str, local: str | Path, *, on_progress: OnProgress | None = None
    ) -> int:
        """Copy a file out of the sandbox to `local`, which is replaced; return its size."""
        return self._thread.call(
            lambda _subject, put: self._inner.files.download(
                remote, local, on_progress=_putting(put, on_progress)
            ),
            _told(on_progress),
        )

    def upload_dir(
        self, local: str | Path, remote: str = ".", *, on_progress: OnProgress | None = None
    ) -> int:
        """Copy a directory of the caller's into the sandbox; return the number of bytes sent."""
        return self._thread.call(
            lambda _subject, put: self._inner.files.upload_dir(
                local, remote, on_progress=_putting(put, on_progress)
            ),
            _told(on_progress),
        )

    def download_dir(
        self,
        remote: str,
        local: str | Path,
        *,
        most_bytes: int = 1 << 30,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Copy a directory out of the sandbox into a new or empty one; return its file count."""
        return self._thread.call(
            lambda _subject, put: self._inner.files.download_dir(
                remote, local, most_bytes=most_bytes, on_progress=_putting(put, on_progress)
            ),
            _told(on_progress),
        )

    def checkpoint(self, name: str | None = None) -> Checkpoint:
        """Keep the work area as it is now, outside of the sandbox."""
        return self._do(lambda: self._inner.files.checkpoint(name))

    def checkpoints(self) -> builtins.list[Checkpoint]:
        """Return the checkpoints, the oldest first."""
        return self._do(self._inner.files.checkpoints)

    def diff(self, since: str | None = None, until: str | None = None) -> builtins.list[FileChange]:
        """Return what differs between two checkpoints, by default from the latest to now."""
        return self._do(lambda: self._inner.files.diff(since, until))

    def diff_text(self, path: str, since: str | None = None, until: str | None = None) -> str:
        """Return a unified diff of one file."""
        return self._do(lambda: self._inner.files.diff_text(path, since, until))

    def rollback(self, checkpoint_id: str) -> Rollback:
        """Make the work area what it was at a checkpoint."""
        return self._do(lambda: self._inner.files.rollback(checkpoint_id))

    def drop(self, checkpoint_id: str) -> None:
        """Forget a checkpoint."""
        self._do(lambda: self._inner.files.drop(checkpoint_id))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Checkpoint]:
        """Roll the work area back if the block raises: `with files.transaction():`."""
        made = self.checkpoint()
        try:
            yield made
        except BaseException:
            with contextlib.suppress(SandboxUnavailable):  # nothing is left to be rolled back
                self.rollback(made.id)
                self.drop(made.id)
            raise
        with contextlib.suppress(SandboxUnavailable):
            self.drop(made.id)

    def watch(self, path: str = ".", *, recursive: bool = True) -> SyncWatch:
        """Return an iterator over the changes in a directory from now on; close it after use."""
        from cellwall.surface.sync.watches import SyncWatch

        return SyncWatch(
            self._thread, self._inner, self._do(lambda: self._watching(path, recursive))
        )

    async def _watching(self, path: str, recursive: bool) -> AnyWatch:
        watch = self._inner.files.watch(path, recursive=recursive)
        await watch.start()
        return watch


def _putting(put: Put, on_progress: OnProgress | None) -> OnProgress | None:
    """Return a callback for the loop that passes progress to the caller's thread."""
    return None if on_progress is None else lambda done, total: put((done, total))


def _told(on_progress: OnProgress | None) -> Callable[[tuple[int, int | None]], None] | None:
    return None if on_progress is None else lambda progress: on_progress(*progress)
