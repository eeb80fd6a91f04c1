"""One session of `SandboxAgent`: commands, files and the workspace of one sandbox.

A path is checked inside the sandbox by the SDK's own helper, as for its other remote sandboxes;
that keeps a model in its workspace, and the sandbox's wall is what it always is. The invariant:
what cannot be done is an error of the SDK's, never an empty answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import cellwall
from cellwall.integrations.openai_agents.sandboxes import CellwallSandboxSessionState, Sandboxes
from cellwall.integrations.shared.commands import reason
from cellwall.integrations.shared.extras import missing

try:
    from agents.sandbox.errors import (
        ConfigurationError,
        ErrorCode,
        ExecTimeoutError,
        ExecTransportError,
        SandboxError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER
    from agents.sandbox.session.workspace_payloads import coerce_write_payload
    from agents.sandbox.types import ExecResult
    from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile
except ModuleNotFoundError as error:
    raise missing("openai-agents", error) from None

if TYPE_CHECKING:
    from agents.sandbox.session.runtime_helpers import RuntimeHelperScript
    from agents.sandbox.types import User

    from cellwall.surface.sync.sandbox import SyncSandbox

_ARCHIVE = "/tmp/.cellwall-workspace.tar"  # noqa: S108 - in the sandbox
_ARCHIVING = """
set -e
cd "$1"; archive=$2; shift 2
trap 'rm -f "$archive.list"' EXIT
find . -mindepth 1 "$@" ! -type p ! -type s ! -type b ! -type c -print0 > "$archive.list"
tar --null --no-recursion -T "$archive.list" -cf "$archive"
"""


class CellwallSandboxSession(BaseSandboxSession):
    """One sandbox, from the start of a session to its end."""

    state: CellwallSandboxSessionState

    def __init__(self, state: CellwallSandboxSessionState, sandboxes: Sandboxes) -> None:
        """Start nothing; the sandbox of `state` is looked for when the session starts."""
        self.state = state
        self._sandboxes = sandboxes
        self._sandbox: SyncSandbox | None = None
        self._has_root = False

    # -- its life ----------------------------------------------------------------------------------

    async def _ensure_backend_started(self) -> None:
        is_new_session = not self.state.workspace_root_ready
        found = await asyncio.to_thread(self._sandboxes.find, self.state.sandbox_id)
        is_kept = found is not None and not is_new_session
        if found is None:
            found = await asyncio.to_thread(self._sandboxes.create, self.state.options)
            self.state.sandbox_id = found.id
            self.state.workspace_root_ready = False
        elif found.status == "paused":
            await asyncio.to_thread(found.resume)
        self._sandbox, self._has_root = found, False
        self._set_start_state_preserved(is_kept)

    async def _prepare_backend_workspace(self) -> None:
        await self._exec_checked_nonzero("mkdir", "-p", "--", self.state.manifest.root)
        self._has_root = True

    async def _shutdown_backend(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        if self.state.options.pause_on_exit and sandbox.status == "running":
            await asyncio.to_thread(sandbox.pause)
        else:
            await asyncio.to_thread(self._sandboxes.end, self.state.sandbox_id)

    async def running(self) -> bool:
        """Whether its sandbox runs."""
        sandbox = self._sandbox
        return sandbox is not None and await asyncio.to_thread(lambda: sandbox.status) == "running"

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.state.sandbox_id

    # -- commands ----------------------------------------------------------------------------------

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        name = user if user is None or isinstance(user, str) else user.name
        if name is not None:
            raise ConfigurationError(
                message=f"run as {name!r}: a cellwall sandbox has one user; leave the user out",
                error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
                op="exec",
                context={"user": name},
            )
        words = super()._prepare_exec_command(*command, shell=shell, user=None)
        return [str(word) for word in words]

    async def _exec_internal(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109 - of the command
    ) -> ExecResult:
        argv = [str(word) for word in command]
        try:
            done = await self._live().commands.arun(
                argv,
                cwd=self.state.manifest.root if self._has_root else None,
                env=await self.state.manifest.environment.resolve(),
                timeout=timeout,
            )
        except cellwall.CellwallError as error:
            raise ExecTransportError(command=argv, cause=error, message=str(error)) from error
        if done.outcome.verdict is cellwall.Verdict.WALL_TIME:
            raise ExecTimeoutError(command=argv, timeout_s=timeout)
        texts = (done.stdout, done.stderr + reason(done))
        stdout, stderr = (text.encode("utf-8", "surrogateescape") for text in texts)
        return ExecResult(stdout=stdout, stderr=stderr, exit_code=done.status)

    def _live(self) -> SyncSandbox:
        if self._sandbox is None:
            raise cellwall.UsageError(
                "session: it has no sandbox", remedy="start the session first, or resume it"
            )
        return self._sandbox

    # -- files -------------------------------------------------------------------------------------

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return Path(await self._validate_remote_path_access(path, for_write=for_write))

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Return a file's content. Raises WorkspaceReadNotFoundError, WorkspaceArchiveReadError."""
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        inside = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self._live().files.aread_bytes(str(inside)))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except cellwall.CellwallError as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a whole file and create its folders. Raises WorkspaceArchiveWriteError."""
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        inside = await self._validate_path_access(path, for_write=True)
        payload = coerce_write_payload(path=path, data=data)
        with tempfile.NamedTemporaryFile() as kept:
            while piece := payload.stream.read(1 << 20):
                kept.write(piece)
            kept.flush()
            try:
                await asyncio.to_thread(self._live().files.upload, kept.name, str(inside))
            except cellwall.CellwallError as error:
                raise WorkspaceArchiveWriteError(path=inside, cause=error) from error

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar; FIFOs and sockets are not in it."""
        root = Path(self.state.manifest.root)
        archiving = ["sh", "-c", _ARCHIVING, "sh", str(root), _ARCHIVE, *self._left_out()]
        try:
            await self._exec_checked_nonzero(*archiving)
            with tempfile.TemporaryDirectory() as folder:
                local = Path(folder, "workspace.tar")
                await asyncio.to_thread(self._live().files.download, _ARCHIVE, local)
                return await asyncio.to_thread(local.open, "rb")  # read after its name is gone
        except (cellwall.CellwallError, OSError) as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        finally:
            await self._remove_archive()

    async def _remove_archive(self) -> None:
        with contextlib.suppress(SandboxError):  # with a sandbox that has ended its files are gone
            await self.exec("rm", "-rf", "--", _ARCHIVE, shell=False)

    def _left_out(self) -> list[str]:
        """Return words for find(1) by which it goes past what a snapshot does not have."""
        words: list[str] = []
        for each in sorted(self._persist_workspace_skip_relpaths()):
            if each != Path():
                plain = re.sub(r"([*?\[\\])", r"\\\1", each.as_posix())
                words += ["-path", f"./{plain}", "-prune", "-o"]
        return words

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar, in the sandbox. Raises WorkspaceArchiveWriteError."""
        root = Path(self.state.manifest.root)
        with tempfile.NamedTemporaryFile() as archive:
            while piece := data.read(1 << 20):
                archive.write(piece)
            archive.seek(0)
            try:
                with tarfile.open(fileobj=archive, mode="r:*") as tar:
                    validate_tarfile(tar, allow_external_symlink_targets=False)
                archive.flush()
                await asyncio.to_thread(self._live().files.upload, archive.name, _ARCHIVE)
            except UnsafeTarMemberError as error:
                context = {"reason": error.reason, "member": error.member}
                raise WorkspaceArchiveWriteError(path=root, context=context, cause=error) from error
            except (tarfile.TarError, cellwall.CellwallError, OSError) as error:
                raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        try:
            await self._exec_checked_nonzero("mkdir", "-p", "--", str(root))
            await self._exec_checked_nonzero("tar", "-C", str(root), "-xf", _ARCHIVE)
        finally:
            await self._remove_archive()
