"""A shell and an editor for OpenAI's Agents SDK: `ShellTool(executor=box.shell)`.

Needs `openai-agents`; `pip install 'cellwall[openai-agents]'`. `ApplyPatchTool(editor=box.editor)`
changes files in the same sandbox. The invariant: a patch is applied to the text that is in the
sandbox, and a path outside of its work area is the sandbox's to refuse.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.commands import ENDED, NOTHING_RAN, reason
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Files, Keeper

try:
    from agents.editor import ApplyPatchOperation, ApplyPatchResult
    from agents.tool import ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult

    from agents import apply_diff
except ModuleNotFoundError as error:
    raise missing("openai-agents", error) from None

if TYPE_CHECKING:
    from cellwall.surface.sync.sandbox import SyncSandbox


class CellwallBox(Closing):
    """One sandbox of one agent, created by its first use; `close` destroys it."""

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

        The arguments are those of `code_tool.CodeTool`; `timeout` is for each command of a call
        that names none, and `limits` default to `Limits.agent()`.
        """
        self.timeout = timeout
        self._keeper = Keeper.for_agent(
            sandbox, client=client, files=files, template=template, **options
        )
        self.editor = CellwallEditor(self._keeper)
        """Editor of the sandbox's files, for `ApplyPatchTool`."""

    async def shell(self, request: ShellCommandRequest) -> ShellResult:
        """Run the commands of a call one after the other; one that ran out of time is the last."""
        action = request.data.action
        timeout = self.timeout if action.timeout_ms is None else action.timeout_ms / 1000
        outputs = []
        for command in action.commands:
            outputs.append(await self._run(command, timeout))
            if outputs[-1].status == "timeout":
                break
        return ShellResult(output=outputs, max_output_length=action.max_output_length)

    async def _run(self, command: str, timeout: float | None) -> ShellCommandOutput:  # noqa: ASYNC109 - of the command
        sandbox, is_new = await asyncio.to_thread(self._keeper.take)
        if is_new:
            self._keeper.told(sandbox)
            return _refused(command, ENDED)
        try:
            done = await sandbox.commands.arun(command, timeout=timeout)
        except cellwall.UsageError as error:
            return _refused(command, str(error))
        return _output(command, done)

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        self._keeper.close()


class CellwallEditor:
    """Editor that applies a model's patches to files of a sandbox."""

    def __init__(self, keeper: Keeper) -> None:
        """`keeper` has the sandbox."""
        self._keeper = keeper

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Write a new file; it fails if there is one."""
        sandbox = await self._sandbox()
        if await asyncio.to_thread(sandbox.files.exists, operation.path):
            return ApplyPatchResult("failed", f"{operation.path} exists; update it instead")
        try:
            text = apply_diff("", operation.diff or "", "create")
            await sandbox.files.awrite(operation.path, text)
        except (ValueError, cellwall.FileError) as error:
            return ApplyPatchResult("failed", str(error))
        return ApplyPatchResult("completed", f"created {operation.path}")

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Change a file, and move it if the operation says so."""
        sandbox = await self._sandbox()
        target = operation.move_to or operation.path
        try:
            before = (await sandbox.files.aread_bytes(operation.path)).decode()
            await sandbox.files.awrite(target, apply_diff(before, operation.diff or ""))
            if target != operation.path:
                await asyncio.to_thread(sandbox.files.remove, operation.path)
        except (ValueError, cellwall.FileError) as error:
            return ApplyPatchResult("failed", str(error))
        return ApplyPatchResult("completed", f"updated {target}")

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Remove a file."""
        sandbox = await self._sandbox()
        try:
            await asyncio.to_thread(sandbox.files.remove, operation.path)
        except cellwall.FileError as error:
            return ApplyPatchResult("failed", str(error))
        return ApplyPatchResult("completed", f"deleted {operation.path}")

    async def _sandbox(self) -> SyncSandbox:
        return (await asyncio.to_thread(self._keeper.take))[0]


def _output(command: str, done: cellwall.CommandResult) -> ShellCommandOutput:
    is_late = done.outcome.verdict is cellwall.Verdict.WALL_TIME
    outcome = ShellCallOutcome("timeout") if is_late else ShellCallOutcome("exit", done.status)
    return ShellCommandOutput(done.stdout, done.stderr + reason(done), outcome, command)


def _refused(command: str, why: str) -> ShellCommandOutput:
    return ShellCommandOutput("", f"{why}\n", ShellCallOutcome("exit", NOTHING_RAN), command)
