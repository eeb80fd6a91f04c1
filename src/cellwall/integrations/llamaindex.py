"""The code tool for LlamaIndex: an `AsyncBaseTool`, synchronous and asynchronous.

Needs `llama-index-core`; `pip install 'cellwall[llamaindex]'`.
"""

from __future__ import annotations

import base64
import copy
from typing import TYPE_CHECKING, Any, Literal, Self

from cellwall.integrations import code_tool
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.extras import missing

try:
    from llama_index.core.base.llms.types import ContentBlock, ImageBlock, TextBlock
    from llama_index.core.tools import AsyncBaseTool, ToolMetadata, ToolOutput
    from pydantic import BaseModel, Field, create_model
except ModuleNotFoundError as error:
    raise missing("llamaindex", error) from None

if TYPE_CHECKING:
    from cellwall.integrations.shared.answers import Answer
    from cellwall.integrations.shared.calls import Definition
    from cellwall.model.snapshot import Threads
    from cellwall.surface.sync.sandbox import SyncSandbox


class CodeTool(Closing, AsyncBaseTool):
    """Tool that runs a model's code; give it to an agent: `FunctionAgent(tools=[tool], llm=llm)`.

    It takes the arguments of `code_tool.CodeTool`. Charts are image blocks; `raw_output` is the
    `Execution`, None where nothing was run. Close it when the conversation ends.
    """

    def __init__(self, template: str = "python", **options: Any) -> None:  # noqa: ANN401 - of `code_tool.CodeTool`
        self._tool = code_tool.CodeTool(template, **options)
        self._metadata = ToolMetadata(
            self._tool.description, self._tool.name, _model(self._tool.definition)
        )

    @property
    def metadata(self) -> ToolMetadata:
        """Metadata with which LlamaIndex describes the tool to models."""
        return self._metadata

    @property
    def sandbox(self) -> SyncSandbox:
        """The sandbox that the next call runs in, created if necessary; mainly for its files."""
        return self._tool.sandbox

    def call(self, input: Any = None, **arguments: Any) -> ToolOutput:  # noqa: ANN401 - theirs
        """Run one call."""
        asked = _asked(input, arguments)
        return self._output(asked, self._tool.call(asked))

    async def acall(self, input: Any = None, **arguments: Any) -> ToolOutput:  # noqa: ANN401 - theirs
        """Do what `call` does for a caller on an event loop; cancelling it ends the run."""
        asked = _asked(input, arguments)
        return self._output(asked, await self._tool.acall(asked))

    def _output(self, asked: dict[str, Any], answer: Answer) -> ToolOutput:
        blocks: list[ContentBlock] = [TextBlock(text=answer.text)]
        blocks += [
            ImageBlock(image=base64.b64decode(image), image_mimetype="image/png")
            for image in answer.images
        ]
        return ToolOutput(
            tool_name=self._tool.name,
            blocks=blocks,
            raw_input=asked,
            raw_output=answer.execution,
            is_error=answer.is_error,
        )

    def fork(
        self, count: int = 1, *, reseed: bool = True, threads: Threads = "refuse"
    ) -> list[Self]:
        """Return copies of the tool, each with a copy of its sandbox as it is now.

        For conversations that go on in several ways. Close each. Raises as `Sandbox.fork`, also if
        one of the copies failed, and then makes none.
        """
        made = []
        for tool in self._tool.fork(count, reseed=reseed, threads=threads):
            made.append(copy.copy(self))
            made[-1]._tool = tool
        return made

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        self._tool.close()


def _asked(single: object, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments; LlamaIndex passes a single one without its name."""
    return arguments if single is None else {"code": single, **arguments}


def _model(definition: Definition) -> type[BaseModel]:
    fields: dict[str, Any] = {
        name: (
            Literal[tuple(member["enum"])] if "enum" in member else str,
            Field(description=member["description"]),
        )
        for name, member in definition.parameters["properties"].items()
    }
    return create_model(definition.name, **fields)
