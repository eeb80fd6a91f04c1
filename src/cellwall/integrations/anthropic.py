"""The code tool for Anthropic's Messages API.

No SDK is needed: messages are read as the SDK's objects or as plain JSON, and replies are plain
JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cellwall.integrations import code_tool

if TYPE_CHECKING:
    from cellwall.integrations.shared.answers import Answer

Json = dict[str, Any]


class CodeTool(code_tool.CodeTool):
    """Code tool with the arguments of `code_tool.CodeTool`; `messages += tool.answer(message)`."""

    @property
    def schema(self) -> Json:
        """Entry for `tools` of a message."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self.parameters,
        }

    def answer(self, message: Any) -> list[Json]:  # noqa: ANN401 - the SDK's object or its JSON
        """Run all calls in `message`; return the user message to append, or nothing if none.

        Beside other tools, check each block's name and use `handle`.
        """
        return _message([self.handle(block) for block in _calls(message)])

    async def aanswer(self, message: Any) -> list[Json]:  # noqa: ANN401 - as above
        """Do what `answer` does for a caller on an event loop."""
        return _message([await self.ahandle(block) for block in _calls(message)])

    def handle(self, block: Any) -> Json:  # noqa: ANN401 - as above
        """Run one `tool_use` block and return its `tool_result`."""
        name = _get(block, "name")
        answer = self.call(_get(block, "input")) if name == self.name else self.no_such_tool(name)
        return _result(block, answer)

    async def ahandle(self, block: Any) -> Json:  # noqa: ANN401 - as above
        """Do what `handle` does for a caller on an event loop."""
        name = _get(block, "name")
        answer = (
            await self.acall(_get(block, "input")) if name == self.name else self.no_such_tool(name)
        )
        return _result(block, answer)


def _get(thing: Any, name: str) -> Any:  # noqa: ANN401 - a field of the SDK's object or its JSON
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _calls(message: Any) -> list[Any]:  # noqa: ANN401 - as above
    return [block for block in _get(message, "content") or () if _get(block, "type") == "tool_use"]


def _message(results: list[Json]) -> list[Json]:
    return [{"role": "user", "content": results}] if results else []


def _result(block: Any, answer: Answer) -> Json:  # noqa: ANN401 - as above
    parts: list[Json] = [{"type": "text", "text": answer.text}]
    for image in answer.images:
        source = {"type": "base64", "media_type": "image/png", "data": image}
        parts.append({"type": "image", "source": source})
    return {
        "type": "tool_result",
        "tool_use_id": _get(block, "id"),
        "content": parts,
        "is_error": answer.is_error,
    }
