"""A sandbox for Strands Agents: `Agent(sandbox=CellwallSandbox("data"))`.

Needs `strands-agents`; `pip install 'cellwall[strands]'`. It brings the agent a shell and an editor
of files; code is given to the interpreters inside. The invariant: after a sandbox has ended, the
next command says so and is not run, because the files it counts on are gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.commands import ENDED, reason
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Files, Keeper

try:
    from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
    from strands.sandbox.posix_shell import PosixShellSandbox
    from strands.sandbox.types import ExecutionResult, FileInfo, StreamChunk
    from strands.vended_tools.file_editor import make_file_editor
    from strands.vended_tools.shell import make_shell
except ModuleNotFoundError as error:
    raise missing("strands", error) from None

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from strands.types.tools import AgentTool

    from cellwall.surface.sync.sandbox import SyncSandbox

_MOST_ENTRIES = 10_000


class CellwallSandbox(Closing, PosixShellSandbox):
    """One sandbox of one agent, created by its first use; `close` destroys it."""

    def __init__(
        self,
        template: str = "python",
        *,
        sandbox: SyncSandbox | None = None,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        files: Files | None = None,
        **options: Any,  # noqa: ANN401 - of `Sandbox`
    ) -> None:
        """Start nothing yet.

        The arguments are those of `code_tool.CodeTool`; `limits` default to `Limits.agent()`.
        """
        self._keeper = Keeper.for_agent(
            sandbox, client=client, files=files, template=template, **options
        )

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - of the command
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **_kwargs: Any,  # noqa: ANN401 - of versions to come
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a shell command; yield its output as it comes, then its result.

        Raises SandboxTimeoutError after `timeout` seconds, RuntimeError if the sandbox has ended.
        Who stops reading ends the command.
        """
        sandbox = await self._taken()
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[cellwall.Event | None] = asyncio.Queue()
        running = asyncio.ensure_future(
            sandbox.commands.arun(
                command,
                cwd=cwd,
                env=env or {},
                timeout=timeout,
                on_event=lambda event: _put(loop, events, event),
            )
        )
        running.add_done_callback(lambda _: _put(loop, events, None))
        try:
            while (event := await events.get()) is not None:
                if event.kind in {"stdout", "stderr"}:
                    kind = "stdout" if event.kind == "stdout" else "stderr"
                    yield StreamChunk(event.text or "", kind)
            yield _result(await running, timeout)
        finally:
            running.cancel()

    async def _taken(self) -> SyncSandbox:
        sandbox, is_new = await asyncio.to_thread(self._keeper.take)
        if is_new:
            self._keeper.told(sandbox)
            raise RuntimeError(ENDED)
        return sandbox

    async def read_file(self, path: str, **_kwargs: Any) -> bytes:  # noqa: ANN401 - of versions to come
        """Return a file's content. Raises FileNotFoundError."""
        return await (await self._taken()).files.aread_bytes(path)

    async def write_file(self, path: str, content: bytes, **_kwargs: Any) -> None:  # noqa: ANN401 - as above
        """Write a whole file and create its folders. Raises OSError."""
        await (await self._taken()).files.awrite(path, content)

    async def remove_file(self, path: str, **_kwargs: Any) -> None:  # noqa: ANN401 - as above
        """Remove a file. Raises FileNotFoundError."""
        sandbox = await self._taken()
        await asyncio.to_thread(sandbox.files.remove, path)

    async def list_files(self, path: str, **_kwargs: Any) -> list[FileInfo]:  # noqa: ANN401 - as above
        """Return what a folder holds. Raises SandboxPathNotFoundError."""
        sandbox = await self._taken()
        try:
            found = await asyncio.to_thread(sandbox.files.list, path, limit=_MOST_ENTRIES)
        except cellwall.FileError as error:
            if error.reason in {"not_found", "not_directory"}:
                raise SandboxPathNotFoundError(path) from error
            raise
        return [FileInfo(each.name, each.type == "directory", each.size) for each in found]

    def get_tools(self) -> list[AgentTool]:
        """Return the tools that an agent gets with it: a shell and an editor of files."""
        return [
            make_file_editor(sandbox=self, name="sandbox_file_editor"),
            make_shell(sandbox=self, name="sandbox_shell"),
        ]

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        self._keeper.close()


def _put(
    loop: asyncio.AbstractEventLoop,
    events: asyncio.Queue[cellwall.Event | None],
    event: cellwall.Event | None,
) -> None:
    """Hand an event to the reader's loop, which may have been closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(events.put_nowait, event)


def _result(done: cellwall.CommandResult, timeout: float | None) -> ExecutionResult:
    if done.outcome.verdict is cellwall.Verdict.WALL_TIME:
        raise SandboxTimeoutError(timeout, done.stdout, done.stderr)
    return ExecutionResult(done.status, done.stdout, done.stderr + reason(done))
