"""Host tools from JavaScript and TypeScript: promises, with the bounds that Python's calls have."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from cellwall import Sandbox, Tool, ToolBox, ToolError, UsageError, Verdict, run
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from conftest import Require

pytestmark = pytest.mark.needs("node")
CAUGHT = "try { %s } catch (e) { [e instanceof ToolError, e.kind, e.message].join('|') }"


def search(query: str, limit: int = 2) -> list[str]:
    """Find documents."""
    return [f"{query} {n}" for n in range(limit)]


def told() -> None:
    raise ToolError("come back tomorrow")


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    tools = {"search": search, "told": told, "hang": Tool(hang, timeout_s=30)}
    with Sandbox(tools=tools) as made:
        yield made


def js(sandbox: Sandbox, code: str, language: str = "javascript", timeout: float = 20) -> str:
    execution = sandbox.run(code, language, timeout=timeout)
    assert execution.verdict is Verdict.OK, execution
    return execution.text or ""


@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_cell_awaits_tools(sandbox: Sandbox, require: Require, language: str) -> None:
    require(language, is_installed(registry.find(language)), "apt-get install node-typescript")
    code = "const found = await tools.search({ query: 'ä', limit: 1 }); found[0]"
    assert js(sandbox, code, language) == "'ä 0'"
    assert "(query: str" in js(sandbox, "String(tools.search)", language)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("tools.told()", "true|raised|told: ToolError: come back tomorrow"),
        (
            "tools.search({ query: 5 })",
            "true|invalid|search: query: Input should be a valid string",
        ),
        (
            "tools.search('x')",
            "true|invalid|search: give its arguments as one object: { name: value }",
        ),
        (
            "tools.search({ query: 5n })",
            "true|invalid|search: arguments are not JSON: Do not know how to serialize a BigInt",
        ),
        (
            "tools.search({ query: 'x'.repeat(300_000) })",
            "true|too_large|search: 300012 bytes of arguments; the limit is 262144",
        ),
    ],
)
def test_call_without_result_rejects_with_a_typed_error(
    sandbox: Sandbox, call: str, said: str
) -> None:
    assert json.dumps(js(sandbox, CAUGHT % f"await {call}")[1:-1]) == json.dumps(said)


def test_calls_beside_each_other_and_beyond_the_bound_wait() -> None:
    meeting = threading.Barrier(4)

    def meet(n: int) -> int:
        meeting.wait(20)
        return n

    code = "await Promise.all([...Array(12).keys()].map((n) => tools.meet({ n }))).then(String)"
    with Sandbox(tools=ToolBox([meet], at_once=4)) as sandbox:
        assert js(sandbox, code) == "'0,1,2,3,4,5,6,7,8,9,10,11'"


def test_limit_ends_calls_and_the_next_cell_has_new_ones(sandbox: Sandbox) -> None:
    ended = sandbox.run("await tools.hang()", "javascript", timeout=1)
    assert ended.verdict is Verdict.WALL_TIME
    js(sandbox, "var kept = tools.hang(); kept.catch(() => 0); 1")
    assert js(sandbox, CAUGHT % "await kept") == "'true|ended|hang: the execution is over'"
    assert js(sandbox, "(await tools.search({ query: 'q' })).length") == "2"


def test_tools_of_one_run_are_gone_with_it(sandbox: Sandbox) -> None:
    def own() -> int:
        return 7

    assert sandbox.run("await tools.own()", "javascript", tools=[own]).text == "7"
    assert sandbox.run("typeof tools", "javascript", tools={}).text == "'undefined'"
    assert js(sandbox, "'own' in tools") == "false"


def test_no_pipe_is_open_but_while_a_call_waits(sandbox: Sandbox) -> None:
    count = "require('fs').readdirSync('/proc/self/fd').length"
    before = js(sandbox, count)
    assert js(sandbox, f"await tools.search({{ query: 'q' }}); {count}") == before
    # The control: the count sees one.
    during = js(sandbox, f"tools.hang().catch(() => 0); {count}")
    assert int(during) == int(before) + 1


def test_program_awaits_tools_and_ends_by_itself() -> None:
    code = "tools.search({ query: 'one' }).then((found) => console.log(found.length))"
    execution = run(code, language="javascript", tools=[search])
    assert (execution.verdict, execution.stdout) == (Verdict.OK, "2\n"), execution
    idle = run("console.log(typeof tools.search)", language="javascript", tools=[search])
    assert (idle.verdict, idle.stdout) == (Verdict.OK, "function\n")


def test_programs_that_run_as_commands_are_refused() -> None:
    with pytest.raises(UsageError, match="as a command"):
        run("1", language="typescript", tools=[search])
    with pytest.raises(UsageError, match="as a command"):
        run("main = 1", language="javascript", tools=[search], arguments={})
