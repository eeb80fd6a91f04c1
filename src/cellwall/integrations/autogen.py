"""A code executor for AutoGen: `CodeExecutorAgent("coder", code_executor=CellwallCodeExecutor())`.

Needs `autogen-core`; `pip install 'cellwall[autogen]'`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import cellwall
from cellwall.integrations.shared.answers import Answer
from cellwall.integrations.shared.extras import missing
from cellwall.integrations.shared.keeper import Files, Keeper
from cellwall.model.execution import DEFAULT_BUDGET_CHARS

try:
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
    from pydantic import BaseModel
except ModuleNotFoundError as error:
    raise missing("autogen", error) from None

if TYPE_CHECKING:
    from cellwall.surface.sync.sandbox import SyncSandbox

_ALIASES = {"": "python", "py": "python", "python3": "python", "ipython": "python"}
_ALIASES |= {"sh": "bash", "shell": "bash", "js": "javascript", "node": "javascript"}


class CellwallCodeExecutorConfig(BaseModel):
    """Configuration of the executor in AutoGen's files."""

    template: str = "python"
    timeout: float | None = None
    budget_chars: int = DEFAULT_BUDGET_CHARS
    options: dict[str, Any] = {}


@dataclass
class CellwallCodeResult(CodeResult):
    """Result of the blocks, with the fields that AutoGen's own result lacks."""

    images: tuple[str, ...] = ()
    """Base64 PNGs, in order."""
    executions: tuple[cellwall.Execution, ...] = ()


class CellwallCodeExecutor(CodeExecutor, Component[CellwallCodeExecutorConfig]):
    """Executor of code blocks in one sandbox, which `stop` destroys. Python blocks share state."""

    component_config_schema = CellwallCodeExecutorConfig
    component_provider_override: ClassVar[str | None] = (
        "cellwall.integrations.autogen.CellwallCodeExecutor"
    )

    def __init__(
        self,
        template: str = "python",
        *,
        sandbox: SyncSandbox | None = None,
        client: Any = None,  # noqa: ANN401 - what `cellwall.connect` returned
        timeout: float | None = None,
        files: Files | None = None,
        budget_chars: int = DEFAULT_BUDGET_CHARS,
        **options: Any,  # noqa: ANN401 - of `Sandbox`
    ) -> None:
        """Start nothing yet; the arguments are those of `code_tool.CodeTool`."""
        self.timeout = timeout
        self.budget_chars = budget_chars
        self._is_plain = sandbox is None and client is None and not files
        self._config = {"template": template, **options}
        self._make = partial(Keeper, sandbox, client=client, files=files, **self._config)
        self._keeper = self._make()

    @property
    def sandbox(self) -> SyncSandbox:
        """The sandbox that the next block runs in, created if necessary; mainly for its files."""
        return self._keeper.take()[0]

    async def execute_code_blocks(
        self, code_blocks: Sequence[CodeBlock], cancellation_token: CancellationToken
    ) -> CellwallCodeResult:
        """Run the blocks in order, up to the first that does not end well.

        Exit code 124 is a time limit. `ValueError` for an unknown language.
        """
        running = asyncio.ensure_future(self._run_all(code_blocks))
        cancellation_token.link_future(running)
        return await running

    async def _run_all(self, blocks: Sequence[CodeBlock]) -> CellwallCodeResult:
        answers: list[Answer] = []
        for block in blocks:
            answers.append(await self._run(block))
            if answers[-1].is_error:
                break
        done = tuple(answer.execution for answer in answers if answer.execution is not None)
        return CellwallCodeResult(
            exit_code=done[-1].status if done else 0,
            output="\n".join(answer.text for answer in answers),
            images=tuple(image for answer in answers for image in answer.images),
            executions=done,
        )

    async def _run(self, block: CodeBlock) -> Answer:
        language = block.language.strip().lower()
        language = _ALIASES.get(language, language)
        sandbox, is_new = await asyncio.to_thread(self._keeper.take)
        try:
            execution = await sandbox.arun(block.code, language, timeout=self.timeout)
        except (cellwall.NotFound, cellwall.UsageError) as error:
            raise ValueError(str(error)) from error
        answer = await asyncio.to_thread(Answer.of, execution, sandbox, self.budget_chars, is_new)
        self._keeper.told(sandbox)
        return answer

    async def start(self) -> None:
        """Create the sandbox; otherwise the first block does."""
        await asyncio.to_thread(self._keeper.take)

    async def stop(self) -> None:
        """Destroy the sandbox; idempotent."""
        old, self._keeper = self._keeper, self._make()
        await asyncio.to_thread(old.close)

    async def restart(self) -> None:
        """Give later blocks a new sandbox, without the state of the earlier ones."""
        await self.stop()
        await self.start()

    def _to_config(self) -> CellwallCodeExecutorConfig:
        if not self._is_plain:
            raise cellwall.UsageError(
                "dump the executor: its sandbox, client or files cannot be written down",
                remedy="make it of a template, a timeout and options",
            )
        options = dict(self._config)
        limits = options.get("limits")
        if limits is not None and not isinstance(limits, Mapping):
            options["limits"] = {name: getattr(limits, name) for name in limits.__slots__}
        return CellwallCodeExecutorConfig(
            template=options.pop("template"),
            timeout=self.timeout,
            budget_chars=self.budget_chars,
            options=options,
        )

    @classmethod
    def _from_config(cls, config: CellwallCodeExecutorConfig) -> Self:
        return cls(
            config.template,
            timeout=config.timeout,
            budget_chars=config.budget_chars,
            **config.options,
        )
