"""Files of a sandbox: operations called from outside it.

Every operation goes through the guest, under the sandbox's own confinement: the host never opens a
path of the sandbox (`security` calls that the most common way out). `download_dir` receives a tar
stream written by hostile code; `tar_unpack` unpacks it.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from cellwall.engine.attempts.file_errors import file_error
from cellwall.engine.parts import transfers
from cellwall.engine.policy.arguments import FILE_CAP_BYTES
from cellwall.model.errors import Conflict, FileError, SandboxBroken
from cellwall.model.files import FileEntry, Listing
from cellwall.runtimes.channel.frames import FrameError
from cellwall.runtimes.channel.replies import GuestRefused, Reply
from cellwall.surface.shared.arguments import check_file_metadata, check_path
from cellwall.surface.shared.transaction import transaction
from cellwall.surface.trees import local_files

if TYPE_CHECKING:
    from cellwall.engine.attempts.claimed_sandbox import ClaimedSandbox
    from cellwall.engine.history.history import History
    from cellwall.engine.history.room import Share
    from cellwall.engine.parts.transfers import Piece
    from cellwall.engine.parts.watches import Watch
    from cellwall.model.history import Checkpoint, FileChange, Rollback
    from cellwall.surface.shared.callbacks import OnProgress

_STEP_BYTES = 1024 * 1024
READ_CAP_BYTES = 256 * 1024 * 1024
"""Maximum number of bytes of one `read`, which holds them in this process's memory. Use `stream`
for more."""


async def read_file(live: ClaimedSandbox, path: str, most_bytes: int) -> bytes:
    """Read a sandbox's file in steps. Raises `GuestRefused` if it has more than `most_bytes`."""
    parts: list[bytes] = []
    size = 0
    while True:
        reply = await live.channel.request("file_read", path=path, offset=size, length=_STEP_BYTES)
        parts.append(reply.body)
        size += len(reply.body)
        if size > most_bytes:
            raise GuestRefused("too_large", f"{path}: it has more than {most_bytes} bytes")
        # An empty answer also ends the loop: a guest that never sends `eof` must not keep it
        # running.
        if reply.header.get("eof") or not reply.body:
            return b"".join(parts)


class Files:
    """File operations of one sandbox. Relative paths start at the working directory."""

    def __init__(self, live: ClaimedSandbox, share: Share) -> None:
        """`share` is the room for its checkpoints."""
        self._live = live
        self._watches: set[Watch] = set()
        self._share = share
        self._history: History | None = None

    async def _ask(self, op: str, path: str, body: bytes = b"", **fields: object) -> Reply:
        await self._live.enter()
        with self._translated(f"{op} {path!r}"):
            return await self._live.channel.request(op, body, path=check_path(path), **fields)

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
        await self._live.enter()
        with self._translated(f"file_read {path!r}"):
            return await read_file(self._live, check_path(path), READ_CAP_BYTES)

    async def write(
        self,
        path: str,
        content: str | bytes,
        *,
        mode: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Write a whole file and create its parents; atomic up to 32 MiB. Return its size.

        The file has this metadata, and none of what a file there had before.
        """
        data, texts = local_files.check_content(content), check_file_metadata(metadata)
        for start in range(0, max(1, len(data)), FILE_CAP_BYTES):
            reply = await self._ask(
                "file_write",
                path,
                data[start : start + FILE_CAP_BYTES],
                append=start > 0,
                parents=True,
                mode=mode,
                **({"metadata": texts} if texts and start == 0 else {}),
            )
            if start == 0:
                transfers.check_kept(reply, texts)
            with self._live.speaking():
                await self._live.channel.wait_writable()
        return len(data)

    async def append(self, path: str, content: str | bytes) -> None:
        """Append to a file, creating it if necessary."""
        data = local_files.check_content(content)
        for start in range(0, max(1, len(data)), FILE_CAP_BYTES):
            step = data[start : start + FILE_CAP_BYTES]
            await self._ask("file_write", path, step, append=True, parents=True, mode=None)

    async def stat(self, path: str) -> FileEntry:
        """Describe one file; links are described, not followed."""
        reply = await self._ask("file_stat", path)
        with self._translated(f"file_stat {path!r}"):
            return _entry(self._live.channel.take_apart(reply.body) if reply.body else reply.header)

    async def exists(self, path: str) -> bool:
        """Report whether a file, directory or link of that name exists."""
        try:
            await self.stat(path)
        except FileError as error:
            if error.reason in ("not_found", "not_directory"):
                return False
            raise
        return True

    async def list(self, path: str = ".", *, depth: int = 1, limit: int = 1000) -> list[FileEntry]:
        """List a directory, `depth` levels down, at most `limit` entries."""
        return (await self.listing(path, depth=depth, limit=limit)).entries

    async def listing(self, path: str = ".", *, depth: int = 1, limit: int = 1000) -> Listing:
        """List like `list` and also report whether there were more entries."""
        reply = await self._ask("file_list", path, depth=depth, limit=limit)
        with self._translated(f"file_list {path!r}"):
            found = self._live.channel.take_apart(reply.body, entries)
        return Listing(found, bool(reply.header.get("truncated")))

    async def mkdir(self, path: str, *, parents: bool = True) -> None:
        """Make a directory."""
        await self._ask("file_mkdir", path, parents=parents)

    async def move(self, path: str, target: str) -> None:
        """Rename or move."""
        await self._ask("file_move", path, target=check_path(target))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, an empty directory or, if `recursive`, a whole tree."""
        await self._ask("file_remove", path, recursive=recursive)

    # -- streams ---------------------------------------------------------------------------

    async def read_piece(self, path: str, offset: int = 0, length: int = 1024 * 1024) -> Piece:
        """Return up to `length` bytes (at most 1 MiB) from `offset`."""
        await self._live.enter()
        with self._translated(f"file_read {path!r}"):
            return await transfers.read_piece(self._live, check_path(path), offset, length)

    async def read_stream(
        self, path: str, offset: int, length: int, inode: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield exactly `length` bytes from `offset` of one file (with inode `inode`), or raise."""
        await self._live.enter()
        with self._translated(f"file_read {path!r}"):
            name = check_path(path)
            async for data in transfers.read_stream(self._live, name, offset, length, inode):
                self._live.touch()
                yield data

    async def write_stream(
        self,
        path: str,
        pieces: AsyncIterable[bytes],
        *,
        mode: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Write a file of any size and create its parents, like `write`. Return its size.

        The file appears under its name in one step.
        """
        name, texts = check_path(path), check_file_metadata(metadata)
        await self._live.enter()
        with self._translated(f"file_write {path!r}"):
            return await transfers.write_stream(self._live, name, self._noted(pieces), mode, texts)

    async def append_stream(self, path: str, pieces: AsyncIterable[bytes]) -> int:
        """Append to a file, creating it if necessary; return the number of bytes appended."""
        await self._live.enter()
        with self._translated(f"file_write {path!r}"):
            name = check_path(path)
            return await transfers.append_stream(self._live, name, self._noted(pieces))

    async def put_tree(self, path: str, pieces: AsyncIterable[bytes]) -> tuple[int, int]:
        """Unpack a tar stream below `path`; return the numbers of files and bytes."""
        await self._live.enter()
        with self._translated(f"tree_put {path!r}"):
            name = check_path(path)
            return await transfers.put_tree(self._live, name, self._noted(pieces))

    async def _noted(self, pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Pass the pieces on and count each as activity: a slow upload is not idleness."""
        async for piece in pieces:
            self._live.touch()
            yield piece

    def watch(self, path: str = ".", *, recursive: bool = True) -> Watch:
        """Return an iterator over the changes in a directory: `async for change in …`.

        Use it in `async with` to start watching before the block begins.
        """
        from cellwall.engine.parts.watches import Watch

        return Watch(self._live, check_path(path), recursive, self._watches)

    # -- history ---------------------------------------------------------------------------

    async def checkpoint(self, name: str | None = None) -> Checkpoint:
        """Keep the work area as it is now, outside of the sandbox, until the sandbox ends.

        The work area is the working directory and all below it, volumes left out. Only content
        that no earlier checkpoint has is stored. Raises FileError, QuotaExceeded, Conflict.
        """
        with self._of_history("checkpoint"):
            return await (await self._opened_history()).checkpoint(name)

    async def checkpoints(self) -> builtins.list[Checkpoint]:
        """Return the checkpoints, the oldest first."""
        self._live.check_alive()
        return [] if self._history is None else self._history.checkpoints()

    async def diff(
        self, since: str | None = None, until: str | None = None
    ) -> builtins.list[FileChange]:
        """Return what differs between two checkpoints, by default from the latest to now.

        Changed times alone are no difference. Raises NotFound, FileError, Conflict.
        """
        with self._of_history("diff"):
            return await (await self._opened_history()).diff(since, until)

    async def diff_text(self, path: str, since: str | None = None, until: str | None = None) -> str:
        """Return a unified diff of one file below the working directory, of up to 1 MiB.

        It is empty if both are equal. Raises NotFound, FileError.
        """
        with self._of_history("diff"):
            return await (await self._opened_history()).diff_text(path, since, until)

    async def rollback(self, checkpoint_id: str) -> Rollback:
        """Make the work area what it was at a checkpoint: content, modes, times and links.

        What was added since is removed. Idle processes inside stop meanwhile; variables, open
        files and processes stay as they are. Raises NotFound, Conflict while an execution or
        command runs, and FileError or Conflict if it is incomplete, which the message says.
        """
        with self._of_history("rollback"):
            return await (await self._opened_history()).rollback(checkpoint_id)

    async def drop(self, checkpoint_id: str) -> None:
        """Forget a checkpoint. Raises NotFound."""
        with self._of_history("drop"):
            await (await self._opened_history()).drop(checkpoint_id)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Checkpoint]:
        """Roll the work area back if the block raises: `async with files.transaction():`."""
        async with transaction(self) as made:
            yield made

    def forget_history(self) -> None:
        """Give up what is kept of the work area; for the sandbox, at its end."""
        if self._history is not None:
            self._history.close()

    async def _opened_history(self) -> History:
        await self._live.enter()
        if self._history is None:
            from cellwall.engine.history.history import History  # most sandboxes keep none

            self._history = History(self._live, self._share, read_file)
        return self._history

    @contextlib.contextmanager
    def _of_history(self, step: str) -> Iterator[None]:
        """Translate as `_translated` does; a tree that changes or a killed child is no defect."""
        with self._translated(step):
            try:
                yield
            except GuestRefused as refusal:
                if refusal.reason not in {"busy", "internal", "cancelled"}:
                    raise
                raise Conflict(f"{step}: {refusal}", remedy="try again") from None

    # -- trees -----------------------------------------------------------------------------

    async def upload(
        self,
        local: str | Path,
        remote: str,
        *,
        mode: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Copy a file of the caller's host into the sandbox; return its size."""
        path = Path(local)
        size = await local_files.check_file(path, "upload")
        progress = local_files.Progress(on_progress, size)
        pieces = local_files.file_pieces(path, size, progress)
        return await self.write_stream(remote, pieces, mode=mode)

    async def download(
        self, remote: str, local: str | Path, *, on_progress: OnProgress | None = None
    ) -> int:
        """Copy a file out of the sandbox to `local`, which is replaced; return its size."""
        first = await self.read_piece(remote, 0, 1)
        progress = local_files.Progress(on_progress, first.size)
        pieces = self.read_stream(remote, 0, first.size, first.inode)
        return await local_files.save(Path(local), pieces, progress)

    async def upload_dir(
        self, local: str | Path, remote: str = ".", *, on_progress: OnProgress | None = None
    ) -> int:
        """Copy a directory of the caller's host into the sandbox; return the number of bytes."""
        root, progress = Path(local), local_files.Progress(on_progress)
        await local_files.check_directory(root, "upload_dir")
        await self.put_tree(remote, local_files.tree_pieces(root, progress))
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

        A consumer that stops early must close the generator (`contextlib.aclosing`): until then the
        channel delivers nothing else.
        """
        async with contextlib.aclosing(self._tar("tree_get", path=check_path(remote))) as pieces:
            async for piece in pieces:
                yield piece

    async def stream_root(self) -> AsyncGenerator[bytes, None]:
        """Yield the root of a sandbox on an image as a layer; its processes end first.

        It is the whole root, or what differs from the image in a sandbox that shows that.

        Not for callers: `engine.images.commit` makes an image of it, and closes the sandbox.
        """
        async with contextlib.aclosing(self._tar("root_get")) as pieces:
            async for piece in pieces:
                yield piece

    async def _tar(self, op: str, **fields: str) -> AsyncGenerator[bytes, None]:
        await self._live.enter()
        with self._translated(f"{op} {fields.get('path', '/')!r}"):
            async with contextlib.aclosing(transfers.get_tree(self._live, op, fields)) as pieces:
                async for piece in pieces:
                    yield piece

    # -- errors ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translated(self, step: str) -> Iterator[None]:
        """Translate the guest's failures to `model.errors`; a caller's own errors pass through."""
        try:
            with self._live.speaking():
                yield
        except GuestRefused as refusal:
            raise file_error(refusal, step) from None
        except FrameError as error:
            raise SandboxBroken(
                f"{step}: bad answer: {error}", remedy="close the sandbox"
            ) from None


def entries(value: object) -> list[FileEntry]:
    """Parse the entries of a guest's directory listing. Raises `FrameError`."""
    if not isinstance(value, list):
        raise FrameError("file_list: not a list")
    return [_entry(entry) for entry in value]


def _entry(value: object) -> FileEntry:
    try:
        return FileEntry.parse(value)
    except ValueError as error:
        raise FrameError(str(error)) from None
