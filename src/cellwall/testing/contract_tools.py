"""Contract for host tools: calls from inside to functions of the caller.

`contract.RuntimeContract` includes it; subclass that. Needs `cellwall[tools]`.
"""

# ruff: noqa: S101 - a test suite, shipped so that third parties can run it

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cellwall.model.outcome import Verdict
from cellwall.surface.tools.tools import Tool, ToolBox, ToolError

if TYPE_CHECKING:
    from cellwall.embedded import Sandbox
    from cellwall.model.execution import Event
    from cellwall.testing.contract import Subject

_PATIENCE_S = 10.0
_who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def search(query: str, limit: int = 2) -> list[str]:
    """Find documents."""
    return [f"{query} {number}" for number in range(limit)]


async def double(number: float) -> float:
    """Multiply by two."""
    await asyncio.sleep(0)
    return number * 2


def broken(path: str) -> None:
    """Raise."""
    raise FileNotFoundError(2, "No such file or directory", path)


def told() -> None:
    """Raise on purpose."""
    raise ToolError("come back /etc/tomorrow")


class _Hanging:
    """An async function that does not end by itself."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()

    async def __call__(self) -> None:
        self.begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class ToolsContract:
    """Contract tests for host tools; see the module."""

    def test_tool_with_a_name_of_a_framework_is_called(self, subject: Subject) -> None:
        """Names with a leading _ are allowed, unless every module has them."""
        calls = "tools.__made__(number=2), __made__(number=3), _own(number=4)"
        code = f"from tools import *\nprint({calls})"
        done = subject.run(code, tools={"__made__": double, "_own": double})
        assert done.stdout == "4.0 6.0 8.0\n", done

    def test_cell_calls_tools_of_its_sandbox(self, subject: Subject) -> None:
        """Calls work by keyword, by position, with defaults; for plain and async functions."""
        with subject.sandbox(tools={"search": search, "double": double}) as sandbox:
            code = "tools.search('a'), tools.search(query='b', limit=1), tools.double(1.5)"
            execution = sandbox.run(code)
        assert execution.text == "(['a 0', 'a 1'], ['b 0'], 3.0)"

    def test_program_calls_tools(self, subject: Subject) -> None:
        """A one-shot program returns the tool's result."""
        execution = subject.run("result = tools.search(query='x', limit=1)", tools=[search])
        assert (execution.verdict, execution.result) == (Verdict.OK, ["x 0"])

    def test_run_has_tools_of_its_own(self, sandbox: Sandbox) -> None:
        """The tools of one run do not exist in the next."""
        assert sandbox.run("tools.double(number=2)", tools=[double]).text == "4.0"
        execution = sandbox.run("tools")
        assert execution.error is not None, (execution.outcome, execution.stderr)
        assert execution.error.name == "NameError"

    def test_tool_shows_its_signature_and_docstring(self, subject: Subject) -> None:
        """`help` inside shows the host function's signature and docstring."""
        execution = subject.run("help(tools.search)", tools=[search])
        assert "search(query: str, limit: int = 2) -> list[str]" in execution.stdout
        assert "Find documents." in execution.stdout

    @pytest.mark.parametrize(
        ("call", "kind", "message"),
        [
            ("search(query=3)", "invalid", "search: query: Input should be a valid string"),
            ("search(query={})", "invalid", "search: query: Input should be a valid string"),
            ("search(query='x', limit=0.5)", "invalid", "search: limit: Input should be"),
            ("search(query={1, 2})", "invalid", "search: arguments are not JSON: set"),
            ("search(query='x' * 1000)", "too_large", "search: 1025 bytes of arguments"),
            ("broken('/home/me')", "raised", "broken: FileNotFoundError: No such file or dire"),
            ("told()", "raised", "told: ToolError: come back /etc/tomorrow"),
            ("huge()", "too_large", "huge: a result of 2000 bytes; the limit is 1024"),
            ("odd()", "raised", "odd: its result, set, is not JSON"),
        ],
    )
    def test_call_without_result_is_a_tool_error(
        self, subject: Subject, call: str, kind: str, message: str
    ) -> None:
        """The error has a kind, and contains nothing of the host."""
        functions: dict[str, Any] = {
            "search": search,
            "broken": broken,
            "told": told,
            "huge": lambda: "x" * 1998,
            "odd": lambda: {1},
        }
        box = ToolBox({name: Tool(each, max_bytes=1024) for name, each in functions.items()})
        code = (
            f"try: tools.{call}\nexcept ToolError as e: print(e.kind, e, sep=chr(10))\n"
            f"assert issubclass(tools.ToolError, Exception)"
        )
        execution = subject.run(code, tools=box)
        lines = execution.stdout.splitlines()
        assert (lines[0], lines[1][: len(message)]) == (kind, message), execution
        assert "/home" not in execution.stdout

    def test_explicit_schema_is_kept(self, subject: Subject) -> None:
        """A schema can say what type hints cannot."""
        schema = {
            "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}, "a-b": {"type": "null"}}
        }
        tool = Tool(lambda **given: given, schema=schema)
        code = (
            "print(tools.at(city='Rome', **{'a-b': None}))\n"
            "try: tools.at(city='rome')\nexcept ToolError as e: print(e)\n"
            "try: tools.at(town='Rome')\nexcept ToolError as e: print(e)\n"
        )
        lines = subject.run(code, tools={"at": tool}).stdout.splitlines()
        assert lines[0] == "{'city': 'Rome', 'a-b': None}"
        assert lines[1].startswith("at: city: 'rome' does not match")
        assert lines[2].startswith("at: arguments: Additional properties are not allowed")

    @pytest.mark.parametrize("decision", [True, False, "yes", None])
    def test_call_waits_for_approval(self, subject: Subject, decision: object) -> None:
        """Only True approves; otherwise the function is not called."""
        asked, called = [], []

        def approve(call: Any) -> Any:  # noqa: ANN401 - what a careless caller writes
            asked.append((call.tool, dict(call.arguments)))
            return decision

        def act(number: int) -> None:
            called.append(number)

        box = ToolBox({"act": Tool(act, needs_approval=True)}, approve=approve)
        execution = subject.run("tools.act(number=7)", tools=box)
        assert asked == [("act", {"number": 7})]
        if decision is True:
            assert (called, execution.verdict) == ([7], Verdict.OK)
        else:
            assert called == []
            assert execution.error is not None
            assert execution.error.value == "act: the call was not approved"

    @pytest.mark.parametrize("is_async", [True, False])
    def test_function_sees_the_context_of_its_caller(
        self, subject: Subject, is_async: bool
    ) -> None:
        """The function sees the caller's context variables, which hold traces and sessions."""

        def name() -> str:
            return _who.get()

        async def aname() -> str:
            return _who.get()

        token = _who.set("me")
        try:
            tools = {"name": aname if is_async else name}
            assert subject.run("result = tools.name()", tools=tools).result == "me"
        finally:
            _who.reset(token)

    def test_approval_that_blocks_stops_nothing_else(self, subject: Subject) -> None:
        """While a person is asked, the limits of the execution still apply."""
        release = threading.Event()

        def approve(_call: object) -> bool:
            return release.wait(_PATIENCE_S)

        tool = Tool(double, needs_approval=approve)
        execution = subject.run("tools.double(1)", tools={"double": tool}, timeout=0.5)
        assert execution.verdict is Verdict.WALL_TIME
        assert not release.is_set()
        release.set()

    def test_calls_are_events(self, subject: Subject) -> None:
        """Each call is an event with its size, end and duration; never with its arguments."""
        events: list[Event] = []
        code = "tools.search('x')\ntry: tools.search(1)\nexcept ToolError: pass"
        subject.run(code, tools=[search], on_event=events.append)
        calls = [event.data for event in events if event.kind == "tool_call" and event.data]
        assert [(call["call"], call["tool"], call["decision"]) for call in calls] == [
            (1, "search", "ok"),
            (2, "search", "invalid"),
        ]
        assert calls[0]["arguments_bytes"] == len('{"query": "x", "limit": 2}')
        assert calls[0]["result_bytes"] == len('["x 0","x 1"]')
        assert calls[0]["duration_ms"] > 0

    def test_threads_call_beside_each_other(self, subject: Subject) -> None:
        """More threads than concurrent calls allowed may call: the others wait."""
        together = threading.Barrier(4, timeout=_PATIENCE_S)

        def meet(number: int) -> int:
            together.wait()
            return number

        code = (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(16) as pool:\n"
            "    result = sum(pool.map(lambda n: tools.meet(number=n), range(32)))"
        )
        execution = subject.run(code, tools=ToolBox([meet], at_once=4), timeout=30)
        assert (execution.verdict, execution.result) == (Verdict.OK, sum(range(32)))

    def test_callers_threads_run_beside_each_other(self, subject: Subject) -> None:
        """Each thread calls its own function of the same name."""
        found: dict[int, Any] = {}

        def work(number: int) -> None:
            mine = {"own": lambda: number}
            found[number] = subject.run("result = tools.own()", tools=mine, timeout=30).result

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {number: number for number in range(4)}

    def test_import_finds_tools_and_a_name_of_its_own_wins(self, subject: Subject) -> None:
        """The import works in the program and in modules that it imports."""
        files = {"helper.py": "def twice(n): return tools.double(n) * 2"}
        code = (
            "import helper, tools as t\n"
            "tools = 'mine'\n"
            "result = [helper.twice(1), t.double(1), tools]"
        )
        assert subject.run(code, tools=[double], files=files).result == [4.0, 2.0, "mine"]

    def test_slow_tool_is_given_up(self, subject: Subject) -> None:
        """The tool's own limit ends the call; the program goes on."""
        hanging = _Hanging()
        tool = Tool(hanging, timeout_s=0.2)
        code = "try: tools.hang()\nexcept ToolError as e: result = e.kind"
        assert subject.run(code, tools={"hang": tool}).result == "timeout"
        assert hanging.cancelled.wait(_PATIENCE_S)

    def test_wall_clock_ends_a_call(self, subject: Subject) -> None:
        """The execution's limit cancels the function; the session lives."""
        hanging, events = _Hanging(), list[Any]()
        with subject.sandbox(tools={"hang": hanging}) as sandbox:
            execution = sandbox.run("tools.hang()", timeout=2, on_event=events.append)
            assert execution.verdict is Verdict.WALL_TIME
            assert hanging.cancelled.wait(_PATIENCE_S)
            assert sandbox.run("6 * 7").text == "42"
        calls = [event.data["decision"] for event in events if event.kind == "tool_call"]
        assert calls == ["cancelled"]
        assert events[-1].kind == "end"

    def test_interrupt_ends_a_call(self, subject: Subject) -> None:
        """An interrupt ends a call like any other line."""
        hanging = _Hanging()
        with subject.sandbox(tools={"hang": hanging, "double": double}) as sandbox:

            def interrupt() -> None:
                assert hanging.begun.wait(_PATIENCE_S)
                sandbox.interrupt()

            other = threading.Thread(target=interrupt)
            other.start()
            execution = sandbox.run("tools.hang()")
            other.join()
            assert execution.verdict is Verdict.INTERRUPTED
            assert hanging.cancelled.wait(_PATIENCE_S)
            assert sandbox.run("tools.double(2)").text == "4.0"

    def test_end_of_the_sandbox_cancels_the_function(self, subject: Subject) -> None:
        """The sandbox is killed in the middle of a call."""
        hanging = _Hanging()
        code = (
            "import os, threading, time\n"
            "threading.Thread(target=tools.hang).start()\n"
            "tools.begun()\nos._exit(3)"
        )

        def begun() -> bool:
            return hanging.begun.wait(_PATIENCE_S)

        execution = subject.run(code, tools={"hang": hanging, "begun": begun})
        assert execution.exit_code == 3
        assert hanging.cancelled.wait(_PATIENCE_S)

    def test_calls_of_an_execution_are_counted(self, subject: Subject) -> None:
        """The next cell may make as many calls again."""
        code = (
            "for n in range(9):\n"
            "    try: tools.double(n)\n"
            "    except ToolError as e: print(n, e.kind); break"
        )
        with subject.sandbox(tools=ToolBox([double], calls=5)) as sandbox:
            assert sandbox.run(code).stdout == "5 limit\n"
            assert sandbox.run(code).stdout == "5 limit\n"

    def test_child_process_cannot_call(self, subject: Subject) -> None:
        """The child gets an error; the program itself can call."""
        code = (
            "import os\n"
            "if os.fork() == 0:\n"
            "    try: tools.double(1)\n"
            "    except ToolError as e: print(e.kind, flush=True)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
            "print(tools.double(1))"
        )
        assert subject.run(code, tools=[double]).stdout == "unavailable\n2.0\n"
