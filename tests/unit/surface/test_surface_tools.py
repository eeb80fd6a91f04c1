"""Tool boxes: schemas from hints, what a caller gets wrong, what the inside is shown."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field

from cellwall.model.errors import UsageError
from cellwall.surface.tools.calls import Answer
from cellwall.surface.tools.tools import Incoming, Tool, ToolBox, ToolError, box_of, check_name


class Place(BaseModel):
    city: str
    zip: int | None = None


@dataclass
class Size:
    width: int


def broken(value: int) -> int:
    raise AttributeError("in /home/me")


def everything(
    query: str,
    limit: Annotated[int, Field(ge=1, le=10)] = 5,
    *,
    kind: Literal["web", "news"] = "web",
    places: list[Place] = [],  # noqa: B006 - as careless callers write
    extra: Any = None,
) -> dict[str, list[Place]]:
    """Find."""
    return {"places": places}


def ask(tools: Any, name: str, arguments: object) -> Answer:
    async def work() -> Answer:
        box = box_of(tools)
        assert box is not None
        body = json.dumps(arguments)
        return await box.handler().answer(Incoming(1, name, len(body), lambda: json.loads(body)))

    return asyncio.run(work())


def said(answer: Answer) -> Any:
    return json.loads(answer.body)


def test_schema_comes_from_hints() -> None:
    schema = ToolBox([everything]).schemas["everything"]
    properties = schema["properties"]
    assert schema["required"] == ["query"]
    assert schema["additionalProperties"] is False
    assert (properties["limit"]["minimum"], properties["limit"]["default"]) == (1, 5)
    assert properties["kind"]["enum"] == ["web", "news"]


def test_inside_is_shown_names_defaults_and_types() -> None:
    (shown,) = ToolBox([everything]).manifest["functions"].values()
    assert shown["doc"] == "Find."
    assert shown["head"].startswith("(query: str, limit: Annotated[int, ")
    assert "kind: Literal['web', 'news'] = 'web', places: list[Place] = ..." in shown["head"]


@pytest.mark.parametrize(
    ("schema", "head"),
    [
        (
            {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["b"]},
            "(b, a: str = ...)",
        ),
        ({"properties": {"a": {"type": "integer", "default": 3}}}, "(a: int = 3)"),
        ({"properties": {"a": True}}, "(a=...)"),
        ({}, "()"),
        ({"properties": {"not-a-name": {}}}, "(**arguments)"),
        ({"properties": {"class": {}}}, "(**arguments)"),
        ({"properties": {"__x": {}}}, "(**arguments)"),
        ({"additionalProperties": True}, "(**arguments)"),
        ({"properties": {"a": {"type": "array", "default": [1]}}}, "(a: list = ...)"),
    ],
)
def test_head_of_an_explicit_schema(schema: dict[str, Any], head: str) -> None:
    box = ToolBox({"t": Tool(lambda **given: given, schema=schema)})
    assert box.manifest["functions"]["t"]["head"] == head


def test_arguments_become_what_the_hints_say() -> None:
    def area(size: Size, place: Place) -> str:
        return f"{size.width} {place.city}"

    answer = ask([area], "area", {"size": {"width": 3}, "place": {"city": "Rome"}})
    assert said(answer) == "3 Rome"


def test_names_that_pydantic_uses_itself_are_names() -> None:
    def copy(schema: str, json: int, model_config: bool = False) -> list[Any]:
        return [schema, json, model_config]

    assert said(ask([copy], "copy", {"schema": "s", "json": 1})) == ["s", 1, False]


# fmt: off
TAKEN = (
    "_manifest", "_line", "_call", "_locals", "_", "__", "____", "__mangled", "_repr_html_",
    "_ipython_display_", "__all__", "__class__", "__dict__", "__dir__", "__doc__", "__getattr__",
    "__getattribute__", "__init__", "__loader__", "__name__", "__path__", "__spec__",
    "__wrapped__", "__reduce_ex__", "__builtins__", "__proto__", "__defineGetter__",
)
# fmt: on


@pytest.mark.parametrize("name", ["_x", "__dspy_construct__", "_x_", "_1", "__f__"])
def test_a_leading_underscore_is_part_of_a_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "tools",
    [
        "search",
        7,
        [lambda: 1],
        {"search": 7},
        {"not a name": print},
        {"class": print},
        *({name: lambda: 1} for name in TAKEN),
        {"ToolError": lambda: 1},
        {"x" * 65: lambda: 1},
        {1: lambda: 1},
        [everything, everything],
        {f"t{n}": lambda: 1 for n in range(65)},
        {"t": lambda *words: 1},
        {"t": lambda a, /: 1},
        {"t": Tool(lambda: 1, needs_approval=True)},
        {"t": Tool(lambda: 1, schema={"type": "array"})},
        {"t": Tool(lambda: 1, schema={"properties": 3})},
        {"t": max},
    ],
)
def test_what_can_never_be_a_tool_is_refused(tools: Any) -> None:
    with pytest.raises(UsageError):
        ToolBox(tools)


def test_hint_that_json_does_not_have_is_refused() -> None:
    def store(db: sqlite3.Connection) -> None:
        """Take what cannot be sent."""

    with pytest.raises(UsageError, match="schema of its arguments"):
        ToolBox([store])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout_s", 0),
        ("timeout_s", -1),
        ("timeout_s", 1e9),
        ("max_bytes", 0),
        ("max_bytes", 1 << 21),
    ],
)
def test_bounds_of_a_tool_are_bounded(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=field):
        Tool(lambda: 1, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("bounds", [{"calls": 0}, {"at_once": 0}, {"at_once": 65}, {"calls": True}])
def test_bounds_of_a_box_are_bounded(bounds: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="out of range"):
        ToolBox([everything], **bounds)


def test_no_tools_are_no_box() -> None:
    assert (box_of(None), box_of({}), box_of([])) == (None, None, None)


def test_remote_reference_of_a_schema_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *words, **_: fetched.append(words))
    schema = {"properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    with pytest.raises(UsageError, match=r"127\.0\.0\.1"):
        ToolBox({"t": Tool(lambda x: x, schema=schema)})
    assert fetched == []


class Odd(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("in /home/me/key.txt"), "ValueError", "in <path>"),
        (OSError(2, "Nope", "/etc/shadow"), "FileNotFoundError", "Nope"),
        (ValueError("see https://a.example/b/c"), "ValueError", "see https://a.example/b/c"),
        (ValueError("1/2 or a/b"), "ValueError", "1/2 or a/b"),
        (ValueError("~/secret/x and '/a/b'"), "ValueError", "<path> and '<path>'"),
        (Odd(), "Odd", ""),
        (StopIteration(3), "RuntimeError", "coroutine raised StopIteration"),
        (SystemExit(3), "RuntimeError", "SystemExit"),
        (KeyboardInterrupt(), "RuntimeError", "KeyboardInterrupt"),
        (TimeoutError("mine"), "TimeoutError", "mine"),
        (ToolError("all of /this/here"), "ToolError", "all of /this/here"),
        (ValueError("x" * 5000), "ValueError", "x" * 1000),
    ],
)
def test_exception_is_told_by_name_and_without_paths(
    error: BaseException, name: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    caplog.set_level(logging.CRITICAL, "cellwall")
    answer = said(ask([fail], "fail", {}))
    assert (answer["kind"], answer["type"], answer["message"]) == ("raised", name, message)


def _cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def _deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "make", [lambda: {1}, lambda: float("nan"), lambda: b"x", _cycle, _deep, lambda: {(1, 2): 3}]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_result_that_is_not_json_is_an_error(make: Callable[[], Any], is_async: bool) -> None:
    async def later() -> Any:
        return make()

    answer = ask({"t": later if is_async else make}, "t", {})
    assert (answer.decision, "is not JSON" in said(answer)["message"]) == ("raised", True)


def test_result_above_its_bound_stays_outside() -> None:
    def long(size: int) -> str:
        return "x" * size

    tools = {"t": Tool(long, max_bytes=100)}
    assert ask(tools, "t", {"size": 98}).decision == "ok"  # with its quotes
    assert ask(tools, "t", {"size": 99}).decision == "too_large"


@pytest.mark.parametrize(("verdict", "decision"), [(True, "ok"), ("no", "denied"), (1, "denied")])
def test_only_true_is_an_approval(verdict: object, decision: str) -> None:
    """Whatever merely looks true was no decision: a word, a record, a coroutine nobody awaited."""
    # What a caller without a type checker may write.
    tool = Tool(lambda: 1, needs_approval=lambda call: verdict)  # type: ignore[arg-type, return-value]
    assert ask({"t": tool}, "t", {}).decision == decision


@pytest.mark.parametrize(("levels", "decision"), [(50, "ok"), (80, "invalid")])
def test_arguments_nested_deeper_than_anybody_means_are_refused(levels: int, decision: str) -> None:
    def take(x: Any) -> int:
        return 1

    deep: list[Any] = []
    for _ in range(levels):
        deep = [deep]
    assert ask([take], "take", {"x": deep}).decision == decision


def test_schema_that_leads_nowhere_is_told_when_it_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "cellwall")
    tool = Tool(lambda x: x, schema={"properties": {"x": {"$ref": "#/$defs/none"}}})
    assert ask({"t": tool}, "t", {"x": 1}).decision == "raised"


def test_check_of_the_callers_that_fails_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "cellwall")

    def function(x: Annotated[int, AfterValidator(broken)]) -> int:
        return x

    answer = said(ask([function], "function", {"x": 1}))
    assert (answer["kind"], answer["message"]) == ("raised", "in <path>")


def test_async_function_that_exits_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    assert said(ask([leave], "leave", {}))["message"] == "SystemExit"


def test_function_that_cancels_itself_is_answered() -> None:
    async def gone() -> None:
        raise asyncio.CancelledError

    assert said(ask([gone], "gone", {}))["message"] == "it was cancelled"


def test_threads_are_kept_and_never_block_the_end() -> None:
    code = (
        "import asyncio, threading\n"
        "from cellwall.surface.tools.calls import ToolCallHandler\n"
        "from cellwall.surface.tools.tools import Incoming, Tool, ToolBox\n"
        "async def main():\n"
        "    names = set()\n"
        "    def name(): names.add(threading.get_ident())\n"
        "    def hang(): threading.Event().wait()\n"
        "    calls = ToolCallHandler(ToolBox({'name': name, 'hang': Tool(hang, timeout_s=0.1)}))\n"
        "    for _ in range(50): await calls.answer(Incoming(1, 'name', 2, dict))\n"
        "    print(len(names) < 5, (await calls.answer(Incoming(1, 'hang', 2, dict))).decision)\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False
    )
    assert (done.stdout, done.returncode) == ("True timeout\n", 0), done.stderr


def test_function_sees_the_context_of_its_caller() -> None:
    import contextvars

    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    def name() -> str:
        return f"{who.get()} {threading.current_thread() is threading.main_thread()}"

    who.set("me")
    assert said(ask([name], "name", {})) == "me False"
