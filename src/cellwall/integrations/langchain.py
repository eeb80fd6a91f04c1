"""The code tool for LangChain and LangGraph: a `BaseTool`, synchronous and asynchronous.

Needs `langchain-core`; `pip install 'cellwall[langchain]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from cellwall.integrations import code_tool
from cellwall.integrations.shared.closing import Closing
from cellwall.integrations.shared.extras import missing

try:
    from langchain_core.tools import BaseTool, ToolException
    from pydantic import PrivateAttr
except ModuleNotFoundError as error:
    raise missing("langchain", error) from None

if TYPE_CHECKING:
    from cellwall.integrations.shared.answers import Answer
    from cellwall.model.snapshot import Threads
    from cellwall.surface.sync.sandbox import SyncSandbox

Content = str | list[dict[str, Any]]


class CodeTool(Closing, BaseTool):
    """Tool that runs a model's code; give it to an agent: `create_agent(model, tools=[tool])`.

    It takes the arguments of `code_tool.CodeTool`, and `images`: whether charts go into the message
    as image blocks (for models that can see), or only into its artifact. The artifact of each
    message is the `Execution`, None where nothing was run. Close it when the conversation ends.
    """

    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    _tool: code_tool.CodeTool = PrivateAttr()
    _images: bool = PrivateAttr()

    def __init__(
        self,
        template: str = "python",
        *,
        images: bool = True,
        **options: Any,  # noqa: ANN401 - of `code_tool.CodeTool`
    ) -> None:
        tool = code_tool.CodeTool(template, **options)
        super().__init__(
            name=tool.name,
            description=tool.description,
            args_schema=tool.parameters,
            handle_tool_error=True,
        )
        self._tool = tool
        self._images = images

    @property
    def sandbox(self) -> SyncSandbox:
        """The sandbox that the next call runs in, created if necessary; mainly for its files."""
        return self._tool.sandbox

    def _run(self, **arguments: Any) -> tuple[Content, Any]:  # noqa: ANN401 - a model chose them
        return self._shaped(self._tool.call(arguments))

    async def _arun(self, **arguments: Any) -> tuple[Content, Any]:  # noqa: ANN401 - as above
        return self._shaped(await self._tool.acall(arguments))

    def _shaped(self, answer: Answer) -> tuple[Content, Any]:
        if answer.execution is None:
            raise ToolException(answer.text)  # a message of status `error`
        if not (answer.images and self._images):
            return answer.text, answer.execution
        blocks: list[dict[str, Any]] = [{"type": "text", "text": answer.text}]
        blocks += [
            {"type": "image", "base64": image, "mime_type": "image/png"} for image in answer.images
        ]
        return blocks, answer.execution

    def fork(
        self, count: int = 1, *, reseed: bool = True, threads: Threads = "refuse"
    ) -> list[Self]:
        """Return copies of the tool, each with a copy of its sandbox as it is now.

        For conversations that go on in several ways. Close each. Raises as `Sandbox.fork`, also if
        one of the copies failed, and then makes none.
        """
        made = []
        for tool in self._tool.fork(count, reseed=reseed, threads=threads):
            made.append(self.model_copy())
            made[-1]._tool = tool
        return made

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        self._tool.close()
