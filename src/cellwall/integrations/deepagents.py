"""A sandbox for Deep Agents: `create_deep_agent(model=…, backend=backend.for_agent())`.

Needs `deepagents`; `pip install 'cellwall[deepagents]'`. Its `BaseSandbox` builds an agent's file
tools from three operations implemented here: a command, files in, files out; each also for callers
on an event loop, without blocking it. A mistake of the model becomes an answer; a failure of the
machine or the surrounding program is raised.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.commands import NOTHING_RAN
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Files, Keeper
from cellwall.model.for_model import error_for_model, whose_fault
from cellwall.model.ids import new_id

try:
    from deepagents.backends.composite import CompositeBackend
    from deepagents.backends.protocol import (
        BackendProtocol,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox
except ModuleNotFoundError as error:
    raise missing("deepagents", error) from None

if TYPE_CHECKING:
    from cellwall.surface.sync.sandbox import SyncSandbox

ARTIFACTS = "/home/user/.deepagents"
_ENDED = (
    "The sandbox of the earlier commands has ended, and its files are gone. Call again: the next "
    "command runs in a new one."
)
_WORDS: Mapping[str, str] = {
    "not_found": "file_not_found",
    "permission": "permission_denied",
    "is_directory": "is_directory",
    "not_directory": "invalid_path",
    "invalid": "invalid_path",
}


class CellwallBackend(Closing, BaseSandbox):
    """One sandbox of one agent: `with CellwallBackend("data") as backend: …`.

    It is created on first use and lives until `close`. If it dies before that, one command is
    answered with that message, and the next ones run in a new sandbox.
    """

    enable_capture_offload = True
    """Setting of Deep Agents: large output of a command stays inside, as a file the agent can
    read."""

    def __init__(
        self,
        template: str = "python",
        *,
        sandbox: SyncSandbox | None = None,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        timeout: float | None = None,
        files: Files | None = None,
        **options: Any,  # noqa: ANN401 - of `Sandbox`
    ) -> None:
        """Start nothing yet.

        The arguments are those of `code_tool.CodeTool`; `timeout` is for each command that names
        none, and `limits` default to `Limits.agent()`.
        """
        super().__init__()
        self.timeout = timeout
        self._id = new_id()
        self._keeper = Keeper.for_agent(
            sandbox, client=client, files=files, template=template, **options
        )

    def for_agent(
        self, routes: Mapping[str, BackendProtocol] | None = None, artifacts: str = ARTIFACTS
    ) -> CompositeBackend:
        """Return the backend to give to an agent; it stores large results inside the sandbox.

        Deep Agents keeps large results and its history below a root, by default that of the file
        system; `artifacts` is a folder in the sandbox. `routes` are those of `CompositeBackend`.
        """
        return CompositeBackend(self, routes=dict(routes or {}), artifacts_root=artifacts)

    @property
    def id(self) -> str:
        """Id of the backend: the same for all sandboxes that it creates."""
        return self._id

    @property
    def sandbox(self) -> SyncSandbox:
        """The sandbox that the next command runs in, created if necessary; mainly for its ports."""
        return self._keeper.take()[0]

    # -- commands ----------------------------------------------------------------------------

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line; its output is as on a terminal, in the order of writing."""
        sandbox, is_new = self._keeper.take()
        if is_new:
            return self._died(sandbox)
        try:
            return _response(sandbox.commands.run(command, **self._options(timeout)))
        except cellwall.CellwallError as error:
            return self._refusal(error)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:  # noqa: ASYNC109 - of the command
        """Do what `execute` does on an event loop; cancelling it ends the command."""
        sandbox, is_new = await asyncio.to_thread(self._keeper.take)
        if is_new:
            return self._died(sandbox)
        try:
            return _response(await sandbox.commands.arun(command, **self._options(timeout)))
        except cellwall.CellwallError as error:
            return self._refusal(error)

    def _options(self, timeout: int | None) -> dict[str, Any]:
        # Deep Agents passes 0 for no timeout; then the sandbox's own limit applies.
        return {"timeout": timeout or self.timeout, "merge_stderr": True}

    def _died(self, sandbox: SyncSandbox) -> ExecuteResponse:
        self._keeper.told(sandbox)
        return ExecuteResponse(output=_ENDED, exit_code=NOTHING_RAN)

    def _refusal(self, error: cellwall.CellwallError) -> ExecuteResponse:
        """Return the model's answer for `error`, or raise an error that a model cannot correct."""
        if isinstance(error, cellwall.SandboxUnavailable) and self._keeper.is_own:
            why = f"{error.message}.{whose_fault(error)}"
            return ExecuteResponse(output=f"{why} {_ENDED}", exit_code=NOTHING_RAN)
        if isinstance(error, cellwall.UsageError | cellwall.Conflict):
            return ExecuteResponse(output=error_for_model(error), exit_code=NOTHING_RAN)
        raise error

    # -- files -------------------------------------------------------------------------------

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write whole files and create their folders."""
        sandbox, answers = self.sandbox, []
        for path, data in files:
            with _noted() as noted:
                sandbox.files.write(_absolute(path), data)
            answers.append(FileUploadResponse(path, noted.error))
        return answers

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Do what `upload_files` does on an event loop."""
        sandbox, answers = (await asyncio.to_thread(self._keeper.take))[0], []
        for path, data in files:
            with _noted() as noted:
                await sandbox.files.awrite(_absolute(path), data)
            answers.append(FileUploadResponse(path, noted.error))
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read whole files."""
        sandbox, answers = self.sandbox, []
        for path in paths:
            content = None
            with _noted() as noted:
                content = sandbox.files.read_bytes(_absolute(path))
            answers.append(FileDownloadResponse(path, content, noted.error))
        return answers

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Do what `download_files` does on an event loop."""
        sandbox, answers = (await asyncio.to_thread(self._keeper.take))[0], []
        for path in paths:
            content = None
            with _noted() as noted:
                content = await sandbox.files.aread_bytes(_absolute(path))
            answers.append(FileDownloadResponse(path, content, noted.error))
        return answers

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        self._keeper.close()


class _Note:
    """Result for one file."""

    error: str | None = None
    """Deep Agents' word for the error."""


@contextmanager
def _noted() -> Iterator[_Note]:
    """Record a file's error as a word; the other files are still processed."""
    note = _Note()
    try:
        yield note
    except cellwall.FileError as error:
        note.error = _WORDS.get(error.reason, error.message)
    except cellwall.UsageError:
        note.error = "invalid_path"


def _absolute(path: str) -> str:
    if not posixpath.isabs(path):
        raise cellwall.FileError(f"{path!r} is not absolute", reason="invalid")
    return path


def _response(result: cellwall.CommandResult) -> ExecuteResponse:
    outcome = result.outcome
    is_cut_only = outcome.verdict is cellwall.Verdict.OUTPUT and outcome.exit_code is not None
    output = result.stdout
    if not outcome.is_its_own and not is_cut_only:
        why = "; ".join(outcome.notes)
        output += f"\n[{outcome.verdict.value}: {why}]" if why else f"\n[{outcome.verdict.value}]"
    return ExecuteResponse(
        output=output,
        exit_code=outcome.exit_code if is_cut_only else result.status,
        truncated=bool(outcome.truncated),
    )
