"""Files of a sandbox on a server; the engine's `files` describes each call.

Every path is resolved inside, by the sandbox's own kernel. Received content was made by hostile
code and is written to a local file only under a name that the caller gave.
"""

from __future__ import annotations

import builtins
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from cellwall.client.connection.transport import Ask, segment
from cellwall.model.errors import FileError, NotFound
from cellwall.model.files import FileEntry, Listing
from cellwall.model.history import Checkpoint, FileChange, Rollback
from cellwall.model.history import check_name as check_checkpoint_name
from cellwall.surface.shared.arguments import check_file_metadata, check_path
from cellwall.surface.shared.transaction import transaction
from cellwall.surface.trees import local_files
from cellwall.wire.reading import seconds_of

if TYPE_CHECKING:
    from cellwall.client.connection.transport import Json
    from cellwall.client.live import RemoteSandboxHandle
    from cellwall.client.watches import Watch
    from cellwall.surface.shared.callbacks import OnProgress

READ_CAP_BYTES = 256 * 1024 * 1024
"""Maximum bytes of one `read`, which holds them in this process's memory. Use `download` for
more."""
_TAR = "application/x-tar"


class Files:
    """File operations of one sandbox. Relative paths start at the working directory."""

    def __init__(self, live: RemoteSandboxHandle) -> None:
        self._live = live

    @overload
    async def read(self, path: str, *, text: Literal[True] = True) -> str: ...
    @overload
    async def read(self, path: str, *, text: Literal[False]) -> bytes: ...
    async def read(self, path: str, *, text: bool = True) -> str | bytes:
        """Return a file's content, decoded as UTF-8 (bad bytes replaced) or as bytes."""
        data = await self.read_bytes(path)
        return data.decode("utf-8", "replace") if text else data

    async def read_bytes(self, path: str) -> bytes:
        """Return a file's content."""
        found = bytearray()
        async for piece in self.read_stream(path):
            found += piece
            if len(found) > READ_CAP_BYTES:
                raise FileError(
                    f"file_read {path!r}: it has more than {READ_CAP_BYTES} bytes",
                    reason="too_large",
                    remedy="use download",
                )
        return bytes(found)

    async def read_stream(self, path: str) -> AsyncIterator[bytes]:
        """Yield a file's content in pieces."""
        async for piece in self._live.pieces(Ask("GET", "/files", {"path": check_path(path)})):
            yield piece

    async def write(
        self,
        path: str,
        content: str | bytes,
        *,
        mode: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Write a whole file and create its parents; it appears in one step. Return its size.

        The file has this metadata, and none of what a file there had before.
        """
        data, texts = local_files.check_content(content), check_file_metadata(metadata)
        params = {"path": check_path(path), "mode": _octal(mode)}
        if texts:
            params["metadata"] = json.dumps(texts)
        answer = await self._live.json(Ask("PUT", "/files", params, content=data, is_held=True))
        return int(answer["size"])

    async def append(self, path: str, content: str | bytes) -> None:
        """Append to a file, creating it if necessary."""
        data = local_files.check_content(content)
        params = {"path": check_path(path), "append": True}
        await self._live.json(
            Ask("PUT", "/files", params, content=data, is_held=True, is_repeatable=False)
        )

    async def stat(self, path: str) -> FileEntry:
        """Describe one file; links are described, not followed."""
        ask = Ask("GET", "/files/stat", {"path": check_path(path)})
        return FileEntry.parse(await self._live.json(ask))

    async def exists(self, path: str) -> bool:
        """Report whether a file, directory or link of that name exists."""
        try:
            await self.stat(path)
        except FileError as error:
            if error.reason in ("not_found", "not_directory"):
                return False
            raise
        return True

    async def list(
        self, path: str = ".", *, depth: int = 1, limit: int = 1000
    ) -> builtins.list[FileEntry]:
        """List a directory, `depth` levels down, at most `limit` entries."""
        return (await self.listing(path, depth=depth, limit=limit)).entries

    async def listing(self, path: str = ".", *, depth: int = 1, limit: int = 1000) -> Listing:
        """List like `list` and also report whether there were more entries."""
        params = {"path": check_path(path), "depth": depth, "limit": limit}
        answer = await self._live.json(Ask("GET", "/files/list", params))
        entries = [FileEntry.parse(entry) for entry in answer["entries"]]
        return Listing(entries, bool(answer["truncated"]))

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        """Make a directory."""
        body = {"path": check_path(path), "parents": parents}
        await self._live.json(Ask("POST", "/files/mkdir", body=body))

    async def move(self, path: str, target: str) -> None:
        """Rename or move."""
        body = {"path": check_path(path), "target": check_path(target)}
        await self._live.json(Ask("POST", "/files/move", body=body))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, an empty directory or, if `recursive`, a whole tree."""
        params = {"path": check_path(path), "recursive": recursive}
        await self._live.json(Ask("DELETE", "/files", params, is_repeatable=False))

    def watch(self, path: str = ".", *, recursive: bool = True) -> Watch:
        """Return an iterator over the changes in a directory: `async for change in …`.

        Use it in `async with` to start watching before the block begins.
        """
        from cellwall.client.watches import Watch

        return Watch(self._live, check_path(path), recursive=recursive)

    # -- history ---------------------------------------------------------------------------

    async def checkpoint(self, name: str | None = None) -> Checkpoint:
        """Keep the work area as it is now, on the server, until the sandbox ends.

        Raises FileError, QuotaExceeded, Conflict.
        """
        body = {"name": check_checkpoint_name(name)}
        ask = Ask("POST", "/checkpoints", body=body, is_held=True, is_repeatable=False)
        return _checkpoint(await self._live.json(ask))

    async def checkpoints(self) -> builtins.list[Checkpoint]:
        """Return the checkpoints, the oldest first."""
        answer = await self._live.json(Ask("GET", "/checkpoints"))
        return [_checkpoint(each) for each in answer["checkpoints"]]

    async def diff(
        self, since: str | None = None, until: str | None = None
    ) -> builtins.list[FileChange]:
        """Return what differs between two checkpoints, by default from the latest to now.

        Raises NotFound, FileError, Conflict.
        """
        answer = await self._diff(since, {"until": until})
        return [FileChange.parse(each) for each in answer["changes"]]

    async def diff_text(self, path: str, since: str | None = None, until: str | None = None) -> str:
        """Return a unified diff of one file below the working directory, of up to 1 MiB."""
        answer = await self._diff(since, {"until": until, "path": check_path(path)})
        return str(answer["text"])

    async def rollback(self, checkpoint_id: str) -> Rollback:
        """Make the work area what it was at a checkpoint: content, modes, times and links.

        Raises NotFound, Conflict while an execution or command runs, and FileError or Conflict if
        it is incomplete, which the message says.
        """
        ask = Ask("POST", f"{_one(checkpoint_id)}/rollback", is_held=True)
        return Rollback.parse(await self._live.json(ask))

    async def drop(self, checkpoint_id: str) -> None:
        """Forget a checkpoint. Raises NotFound."""
        await self._live.json(Ask("DELETE", _one(checkpoint_id), is_repeatable=False))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Checkpoint]:
        """Roll the work area back if the block raises: `async with files.transaction():`."""
        async with transaction(self) as made:
            yield made

    async def _diff(self, since: str | None, query: dict[str, str | None]) -> Json:
        if since is None:
            known = await self.checkpoints()
            if not known:
                raise NotFound("checkpoint: there is none of this sandbox", remedy="make one")
            since = known[-1].id
        params = {name: value for name, value in query.items() if value is not None}
        return await self._live.json(Ask("GET", f"{_one(since)}/diff", params, is_held=True))

    # -- files and trees of the caller's ---------------------------------------------------

    async def upload(
        self,
        local: str | Path,
        remote: str,
        *,
        mode: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Copy a local file into the sandbox; return its size."""
        path = Path(local)
        size = await local_files.check_file(path, "upload")

        def pieces() -> AsyncIterator[bytes]:
            return local_files.file_pieces(path, size, local_files.Progress(on_progress, size))

        params = {"path": check_path(remote), "mode": _octal(mode)}
        ask = Ask("PUT", "/files", params, content=pieces, size=size, is_held=True)
        return int((await self._live.json(ask))["size"])

    async def download(
        self, remote: str, local: str | Path, *, on_progress: OnProgress | None = None
    ) -> int:
        """Copy a file out of the sandbox to `local`, which is replaced; return its size."""
        size = (await self.stat(remote)).size
        progress = local_files.Progress(on_progress, size)
        return await local_files.save(Path(local), self.read_stream(remote), progress)

    async def upload_dir(
        self, local: str | Path, remote: str = ".", *, on_progress: OnProgress | None = None
    ) -> int:
        """Copy a local directory into the sandbox; return the number of bytes sent."""
        root, progress = Path(local), local_files.Progress(on_progress)
        await local_files.check_directory(root, "upload_dir")
        ask = Ask(
            "PUT",
            "/files/archive",
            {"path": check_path(remote)},
            content=lambda: local_files.tree_pieces(root, progress),
            media=_TAR,
            is_held=True,
            is_repeatable=False,
        )
        await self._live.json(ask)
        return progress.bytes

    async def download_dir(
        self,
        remote: str,
        local: str | Path,
        *,
        most_bytes: int = 1 << 30,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Copy a directory out of the sandbox into `local`, creating it; return its file count.

        Only regular files and directories are copied; links and special files are left out.
        """
        progress = local_files.Progress(on_progress)
        async with contextlib.aclosing(self.stream_dir(remote)) as pieces:
            return await local_files.unpack(Path(local), pieces, most_bytes, progress)

    async def stream_dir(self, remote: str) -> AsyncGenerator[bytes, None]:
        """Yield a directory as a tar stream. Hostile bytes: do not extract them carelessly.

        A consumer that stops early must close the generator (`contextlib.aclosing`), which closes
        the connection.
        """
        ask = Ask("GET", "/files/archive", {"path": check_path(remote)})
        async with contextlib.aclosing(self._live.pieces(ask)) as pieces:
            async for piece in pieces:
                yield piece


def _one(checkpoint_id: str) -> str:
    return f"/checkpoints/{segment(checkpoint_id, 'checkpoint', remedy='list checkpoints')}"


def _checkpoint(shown: Json) -> Checkpoint:
    return Checkpoint.parse({**shown, "created_at": seconds_of(shown["created_at"])})


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:03o}"
