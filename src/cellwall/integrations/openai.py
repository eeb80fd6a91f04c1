"""The code tool for OpenAI's APIs and the many compatible ones.

It supports Chat Completions and Responses. No SDK is needed: replies are read as the SDK's objects
or as plain JSON, and answers are plain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cellwall.integrations import code_tool

if TYPE_CHECKING:
    from cellwall.integrations.shared.answers import Answer

Json = dict[str, Any]

_CHARTS = "The images that the last code drew, in order:"


class CodeTool(code_tool.CodeTool):
    """Code tool with the arguments of `code_tool.CodeTool`.

    `messages += tool.answer(message)` for Chat Completions, `input += tool.answer(response)` for
    Responses. Beside other tools, check each call's name and use `handle`.
    """

    @property
    def schema(self) -> Json:
        """Entry for `tools` of a chat completion."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": True,
        }
        return {"type": "function", "function": function}

    @property
    def response_schema(self) -> Json:
        """Entry for `tools` of a response."""
        return {"type": "function", **self.schema["function"]}

    def answer(self, reply: Any) -> list[Json]:  # noqa: ANN401 - the SDK's object or its JSON
        """Run all calls in `reply`, a chat message or a response; return the items to append.

        Empty when there are none. Images come in a message of their own after the tools' messages,
        because a chat's tool message can carry text only; a response's output can carry both.
        """
        calls = _calls(reply)
        return _messages([(call, self._run(call)) for call in calls])

    async def aanswer(self, reply: Any) -> list[Json]:  # noqa: ANN401 - as above
        """Do what `answer` does for a caller on an event loop."""
        calls = _calls(reply)
        return _messages([(call, await self._arun(call)) for call in calls])

    def handle(self, call: Any) -> Json:  # noqa: ANN401 - as above
        """Run one call and return its tool message or output; a chat's without images."""
        return _message(call, self._run(call))

    async def ahandle(self, call: Any) -> Json:  # noqa: ANN401 - as above
        """Do what `handle` does for a caller on an event loop."""
        return _message(call, await self._arun(call))

    def _run(self, call: Any) -> Answer:  # noqa: ANN401 - as above
        name, arguments = _asked(call)
        return self.call(arguments) if name == self.name else self.no_such_tool(name)

    async def _arun(self, call: Any) -> Answer:  # noqa: ANN401 - as above
        name, arguments = _asked(call)
        return await self.acall(arguments) if name == self.name else self.no_such_tool(name)


def _get(thing: Any, name: str) -> Any:  # noqa: ANN401 - a field of the SDK's object or its JSON
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _is_response(call: Any) -> bool:  # noqa: ANN401 - as above
    return bool(_get(call, "type") == "function_call")


def _calls(reply: Any) -> list[Any]:  # noqa: ANN401 - as above
    output = _get(reply, "output")
    if output is not None:
        return [item for item in output if _is_response(item)]
    return list(_get(reply, "tool_calls") or ())


def _asked(call: Any) -> tuple[Any, Any]:  # noqa: ANN401 - as above
    """Return the name and the arguments of a call."""
    # A custom tool's call has `custom` in its place: it is not a call of this tool.
    asked = call if _is_response(call) else _get(call, "function") or _get(call, "custom")
    return _get(asked, "name"), _get(asked, "arguments")


def _message(call: Any, answer: Answer) -> Json:  # noqa: ANN401 - as above
    if not _is_response(call):
        return {"role": "tool", "tool_call_id": _get(call, "id"), "content": answer.text}
    output: str | list[Json] = answer.text
    if answer.images:
        parts = [
            {"type": "input_image", "image_url": url, "detail": "auto"} for url in _urls(answer)
        ]
        output = [{"type": "input_text", "text": answer.text}, *parts]
    return {"type": "function_call_output", "call_id": _get(call, "call_id"), "output": output}


def _messages(answered: list[tuple[Any, Answer]]) -> list[Json]:
    messages = [_message(call, answer) for call, answer in answered]
    urls = [url for call, answer in answered if not _is_response(call) for url in _urls(answer)]
    if urls:
        parts: list[Json] = [{"type": "text", "text": _CHARTS}]
        parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        messages.append({"role": "user", "content": parts})
    return messages


def _urls(answer: Answer) -> list[str]:
    return [f"data:image/png;base64,{image}" for image in answer.images]
