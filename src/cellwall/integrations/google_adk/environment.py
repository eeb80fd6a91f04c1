"""An environment for Google's ADK: `EnvironmentToolset(environment=CellwallEnvironment())`.

The toolset brings an agent a shell and an editor of files, and closes the environment with its
runner. ADK marks the interface as experimental. The invariant: after a sandbox has ended, the next
command says so and is not run, because the files it counts on are gone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.integrations.shared.commands import ENDED, NOTHING_RAN, reason
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Files, Keeper

try:
    from google.adk.environment import BaseEnvironment, ExecutionResult
except ModuleNotFoundError as error:
    raise missing("google-adk", error) from None

if TYPE_CHECKING:
    import os

    from cellwall.surface.sync.sandbox import SyncSandbox


class CellwallEnvironment(BaseEnvironment):
    """One sandbox from `initialize` to `close`."""

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
        self.timeout = timeout
        self._keeper = Keeper.for_agent(
            sandbox, client=client, files=files, template=template, **options
        )
        self._working_dir: Path | None = None

    @property
    def working_dir(self) -> Path:
        """Folder inside the sandbox in which commands begin."""
        if self._working_dir is None:
            raise RuntimeError("the environment has no sandbox yet; call initialize() first")
        return self._working_dir

    async def initialize(self) -> None:
        """Create the sandbox; idempotent."""
        if self._working_dir is None:
            sandbox, _ = await asyncio.to_thread(self._keeper.take)
            said = (await sandbox.commands.arun("pwd")).stdout
            self._working_dir = Path(said.removesuffix("\n"))
            self.is_initialized = True

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:  # noqa: ASYNC109 - of the command
        """Run a shell command in the working folder; cancelling it ends the command.

        The sandbox's own limit of wall time holds as well.
        """
        sandbox, is_new = await self._taken()
        if is_new:
            self._keeper.told(sandbox)
            return ExecutionResult(NOTHING_RAN, "", f"{ENDED}\n")
        limit = self.timeout if timeout is None else timeout
        return _result(await sandbox.commands.arun(command, timeout=limit))

    async def read_file(self, path: str | os.PathLike[str]) -> bytes:
        """Return a file's content. Raises FileNotFoundError, also after the sandbox has ended."""
        sandbox, is_new = await self._taken()
        if is_new:  # ADK's editor lets nothing else through to the model; a command tells it why
            raise FileNotFoundError(ENDED)
        return await sandbox.files.aread_bytes(self._inside(path))

    async def write_file(self, path: str | os.PathLike[str], content: str | bytes) -> None:
        """Write a whole file and create its folders. Raises OSError."""
        sandbox, is_new = await self._taken()
        if is_new:
            self._keeper.told(sandbox)
            raise RuntimeError(ENDED)
        await sandbox.files.awrite(self._inside(path), content)

    async def close(self) -> None:
        """Destroy the sandbox, if it created it; idempotent. `initialize` makes another."""
        self._working_dir = None
        self.is_initialized = False
        await asyncio.to_thread(self._keeper.forget)

    async def __aenter__(self) -> CellwallEnvironment:
        """Initialize it."""
        await self.initialize()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close it."""
        await self.close()

    async def _taken(self) -> tuple[SyncSandbox, bool]:
        _ = self.working_dir  # nothing is created by what comes after `close`
        return await asyncio.to_thread(self._keeper.take)

    def _inside(self, path: str | os.PathLike[str]) -> str:
        return str(self.working_dir / path)


def _result(done: cellwall.CommandResult) -> ExecutionResult:
    is_late = done.outcome.verdict is cellwall.Verdict.WALL_TIME
    return ExecutionResult(done.status, done.stdout, done.stderr + reason(done), is_late)
