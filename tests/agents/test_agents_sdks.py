"""What goes to OpenAI's and Anthropic's APIs is what their own SDKs' types say it must be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import Message, MessageParam, ToolParam
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessage,
    ChatCompletionMessageParam,
)
from openai.types.responses import FunctionToolParam, Response
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter

from cellwall.integrations import anthropic, openai
from kit.agents.stand_in import chat_script, message_script, response_script

DRAW = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
Json = dict[str, Any]


def check(kind: Any, value: object) -> None:
    """Read `value` by the SDK's type."""
    TypeAdapter(kind).validate_python(value)


@pytest.fixture(scope="module")
def openai_tool() -> Iterator[openai.CodeTool]:
    with openai.CodeTool("data") as tool:
        yield tool


@pytest.fixture(scope="module")
def anthropic_tool() -> Iterator[anthropic.CodeTool]:
    with anthropic.CodeTool("data") as tool:
        yield tool


def chat(*calls: tuple[str, str]) -> Json:
    """Return a message with calls of (name, arguments)."""
    return {
        "role": "assistant",
        "tool_calls": [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": text}}
            for n, (name, text) in enumerate(calls)
        ],
    }


def test_openai_schemas(openai_tool: openai.CodeTool) -> None:
    check(ChatCompletionFunctionToolParam, openai_tool.schema)
    check(FunctionToolParam, openai_tool.response_schema)


def test_chat_answers_each_call_then_shows_the_charts(openai_tool: openai.CodeTool) -> None:
    code = json.dumps({"code": DRAW})
    asked = chat(("run_code", code), ("run_code", '{"cod": 1}'), ("search", "{}"))
    message = ChatCompletionMessage.model_validate(asked)
    for reply in (asked, message):  # plain JSON and the SDK's object
        answers = openai_tool.answer(reply)
        for answer in answers:
            check(ChatCompletionMessageParam, answer)
        assert [answer["role"] for answer in answers] == ["tool", "tool", "tool", "user"]
        assert [a.get("tool_call_id") for a in answers[:3]] == ["call_0", "call_1", "call_2"]
        assert "[image 1: PNG" in answers[0]["content"]
        assert "no argument 'cod'" in answers[1]["content"]
        assert "no tool 'search'" in answers[2]["content"]
        assert answers[3]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVB")
    assert openai_tool.answer({"role": "assistant", "content": "done"}) == []


def test_chat_one_call_at_a_time(openai_tool: openai.CodeTool) -> None:
    message = ChatCompletionMessage.model_validate(chat(("run_code", '{"code": "print(7)"}')))
    assert message.tool_calls is not None
    expected = {"role": "tool", "tool_call_id": "call_0", "content": "7"}
    assert openai_tool.handle(message.tool_calls[0]) == expected
    assert asyncio.run(openai_tool.ahandle(message.tool_calls[0])) == expected


def test_responses_carry_charts_in_the_output(openai_tool: openai.CodeTool) -> None:
    response = Response.model_validate(response_script()[0])
    [answer] = asyncio.run(openai_tool.aanswer(response))
    check(FunctionCallOutput, answer)
    assert answer["call_id"] == "call_1"
    assert [part["type"] for part in answer["output"]] == ["input_text", "input_image"]
    assert openai_tool.answer(Response.model_validate(response_script()[2])) == []


def test_chat_scripts_are_what_the_sdk_reads() -> None:
    for each in chat_script():
        ChatCompletionMessage.model_validate(each["choices"][0]["message"])


def test_anthropic_schema(anthropic_tool: anthropic.CodeTool) -> None:
    check(ToolParam, anthropic_tool.schema)


def test_anthropic_answers_with_text_and_charts(anthropic_tool: anthropic.CodeTool) -> None:
    asked = message_script()[0]
    asked["content"] += [
        {"type": "tool_use", "id": "b", "name": "run_code", "input": {"code": "1 / 0"}},
        {"type": "tool_use", "id": "c", "name": "search", "input": {}},
        {"type": "text", "text": "I will see."},
    ]
    message = Message.model_validate(asked)
    for answers in (anthropic_tool.answer(message), asyncio.run(anthropic_tool.aanswer(asked))):
        [answer] = answers
        check(MessageParam, answer)
        results = answer["content"]
        assert [result["tool_use_id"] for result in results] == ["toolu_1", "b", "c"]
        assert [result["is_error"] for result in results] == [False, True, True]
        assert [part["type"] for part in results[0]["content"]] == ["text", "image"]
        assert "ZeroDivisionError" in results[1]["content"][0]["text"]
        assert "no tool 'search'" in results[2]["content"][0]["text"]
    assert anthropic_tool.answer(Message.model_validate(message_script()[2])) == []
