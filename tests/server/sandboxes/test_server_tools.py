"""Host tools over HTTP: the functions stay with the client, whatever calls them and from where."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import cellwall
from cellwall import Event, Tool, ToolBox, ToolError, Verdict
from cellwall.client.blocking import Client
from cellwall.model.errors import Conflict
from cellwall.server.core.settings import ServerSettings
from cellwall.server.executions.remote_tools import RemoteTools
from cellwall.server.schemas.tools import ToolsBody
from cellwall.surface.tools.calls import Answer
from cellwall.surface.tools.tools import Incoming
from kit.servers import ALICE, BOB, Server, error_of, new_sandbox, running

STREAM = {"Accept": "application/x-ndjson"}
DOUBLE = {"functions": {"double": {"head": "(number: int) -> int", "doc": "Twice."}}}
CATCH = "try: print(tools.double({}))\nexcept ToolError as e: print(e.kind, '|', e)"


def double(number: int) -> int:
    """Multiply by two."""
    return number * 2


async def search(query: str, limit: int = 2) -> list[str]:
    """Find."""
    await asyncio.sleep(0)
    return [f"{query} {n}" for n in range(limit)]


def broken() -> None:
    raise FileNotFoundError(2, "No such file or directory", "/etc/secret")


def told() -> None:
    raise ToolError("come back tomorrow")


@pytest.fixture(scope="module")
def brief() -> Iterator[Server]:
    """Return a server that waits for nobody for long."""
    with running(tool_wait_s=1.0, tool_absence_s=0.3) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with cellwall.connect(server.address, ALICE) as made:
        yield made


# -- the SDK -----------------------------------------------------------------------------------


def test_sandbox_calls_functions_of_this_process(client: Client) -> None:
    where: list[int] = []

    def here(x: int) -> int:
        where.append(threading.get_ident())
        return x + 1

    with client.Sandbox(tools={"here": here, "search": search}) as sandbox:
        assert sandbox.run("tools.here(x=1) + tools.here(2)").text == "5"
        assert sandbox.run("tools.search('a', limit=1)").text == "['a 0']"
        assert "search(query: str, limit: int = 2)" in sandbox.run("help(tools.search)").stdout
        assert sandbox.run("echo $((1 + 1))", "bash").stdout == "2\n"  # without, and without fuss
        own = sandbox.run("tools.double(4)", tools=[double])
        assert own.text == "8"
        assert sandbox.run("print('tools' in dir(__builtins__))", tools={}).stdout == "False\n"
    assert len(where) == 2


def test_program_calls_and_events_say_so(client: Client) -> None:
    events: list[Event] = []
    execution = client.run("print(tools.double(21))", tools=[double], on_event=events.append)
    assert (execution.stdout, execution.verdict) == ("42\n", Verdict.OK)
    calls = [event.data for event in events if event.kind == "tool_call" and event.data]
    assert [(each["tool"], each["decision"]) for each in calls] == [("double", "ok")]
    assert "21" not in json.dumps({**calls[0], "duration_ms": 0, "arguments_sha256": ""})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("tools.double('x')", "double: number: Input should be a valid integer"),
        ("tools.broken()", "broken: FileNotFoundError: No such file or directory"),
        ("tools.told()", "told: ToolError: come back tomorrow"),
        ("tools.big()", "big: a result of 502 bytes; the limit is 400"),
        ("tools.guarded()", "guarded: the call was not approved"),
        ("tools.slow()", "slow: no result within 0.2 s"),
    ],
)
def test_errors_read_as_in_the_embedded_library(client: Client, code: str, said: str) -> None:
    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    box = ToolBox(
        {
            "double": double,
            "broken": broken,
            "told": told,
            "big": Tool(lambda: "y" * 500, max_bytes=400),
            "guarded": Tool(told, needs_approval=True),
            "slow": Tool(slow, timeout_s=0.2),
        },
        approve=lambda call: False,
    )
    options: dict[str, Any] = {"tools": box, "timeout": 30}
    for execution in (client.run(code, **options), cellwall.run(code, **options)):
        assert execution.error is not None
        assert execution.error.value == said


def test_threads_inside_call_beside_each_other(client: Client) -> None:
    meeting = threading.Barrier(4)

    def meet() -> int:
        return meeting.wait(20)

    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    print(sorted(pool.map(lambda _: tools.meet(), range(4))))"
    )
    assert client.run(code, tools=ToolBox([meet], at_once=4)).stdout == "[0, 1, 2, 3]\n"


def test_asynchronous_client_and_a_cancelled_call(server: Server) -> None:
    async def work() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            begun.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

        async with (
            await cellwall.aconnect(server.address, ALICE) as client,
            client.AsyncSandbox.create(tools=[hang, search]) as sandbox,
        ):
            assert (await sandbox.run("tools.search('q')")).text == "['q 0', 'q 1']"
            running = asyncio.ensure_future(sandbox.run("tools.hang()"))
            await begun.wait()
            await sandbox.interrupt()
            execution = await running
            assert execution.error is not None
            assert execution.error.name == "KeyboardInterrupt"
            await asyncio.wait_for(ended.wait(), 20)  # the control: it would hang for ever
            kinds = [event.kind async for event in sandbox.stream("tools.search('q', 1)")]
            assert kinds == ["tool_call", "result", "end"]

    asyncio.run(work())


def test_large_arguments_and_results_come_through(client: Client) -> None:
    def echo(text: str) -> str:
        return text

    code = "t = 'ä\\n' * 20_000\nprint(tools.echo(t) == t)"
    assert client.run(code, tools={"echo": Tool(echo, max_bytes=1 << 20)}).stdout == "True\n"


# -- plain HTTP --------------------------------------------------------------------------------


class Program:
    """One execution whose events and calls a test reads by hand."""

    def __init__(self, server: Server, code: str, key: str = ALICE, **tools: object) -> None:
        self._server = server
        self.client = server.client(key)
        body = {"code": code, "tools": {**DOUBLE, **tools}}
        request = self.client.build_request("POST", "/execute", json=body, headers=STREAM)
        self.events = self.client.send(request, stream=True)
        assert self.events.status_code == 200, self.events.read()
        self.id = self.events.headers["x-execution-id"]
        self.path = f"/executions/{self.id}"

    def call(self) -> dict[str, Any]:
        """Return the first call that is shown, on a connection that is closed then."""
        with self.client.stream("GET", f"{self.path}/calls") as stream:
            for line in stream.iter_lines():
                return dict(json.loads(line))
        raise AssertionError("no call")

    def answer(self, number: object, key: str | None = None, **body: object) -> httpx.Response:
        client = self.client if key is None else self._server.client(key)
        return client.post(f"{self.path}/calls/{number}", json=body)

    def stdout(self) -> str:
        lines = [json.loads(line) for line in self.events.iter_lines()]
        self.events.close()
        return "".join(line["text"] for line in lines if line["type"] == "stdout")


def test_call_is_shown_and_answered_once(server: Server) -> None:
    program = Program(server, CATCH.format(4))
    call = program.call()
    assert {**call, "seq": 1} == {
        "seq": 1, "type": "call", "call": 1, "tool": "double",
        "arguments": {"number": 4}, "arguments_bytes": 13,
    }  # fmt: skip
    assert program.call() == call  # again for whoever comes later, as long as it waits
    assert program.answer(2, result=1).status_code == 404
    assert program.answer("x", result=1).status_code == 404
    assert program.answer(1, result=8).status_code == 200
    again = program.answer(1, result=9)
    assert (again.status_code, error_of(again)["code"]) == (409, "conflict")
    assert program.stdout() == "8\n"
    assert program.answer(1, result=9).status_code == 409
    assert program.client.get(f"{program.path}/calls").status_code == 409


def test_other_tenant_neither_sees_nor_answers(server: Server) -> None:
    program = Program(server, CATCH.format(4))
    number = program.call()["call"]
    bob = server.client(BOB)
    assert bob.get(f"{program.path}/calls").status_code == 404
    assert program.answer(number, BOB, result="forged").status_code == 404
    assert program.answer(number, result="own").status_code == 200  # the control
    assert program.stdout() == "own\n"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"result": NaN}', 400),
        (b'{"result": 1e999}', 400),
        (b"{}", 400),
        (b'{"result": 1, "error": {}}', 400),
        (b'{"error": {"kind": "ok"}}', 400),
        (b'{"error": {"kind": "raised", "more": 1}}', 400),
        (b'{"result": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (b'{"result": "\\ud800"}', 400),
        (b'{"result": "' + b"x" * 300_000 + b'"}', 413),
        (b'{"result": "' + b"x" * 1_100_000 + b'"}', 413),
    ],
)
def test_bad_answer_is_refused_and_the_call_still_waits(
    server: Server, content: bytes, status: int
) -> None:
    program = Program(server, CATCH.format(4))
    number = program.call()["call"]
    answer = program.client.post(
        f"{program.path}/calls/{number}",
        content=content,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == status, answer.text
    assert program.answer(number, error={"type": "E", "message": "no"}).status_code == 200
    assert program.stdout() == "raised | double: E: no\n"


@pytest.mark.parametrize(
    "tools",
    [
        {"functions": {}},
        {"functions": {"__class__": {}}},
        {"functions": {"a b": {}}},
        {"functions": {"class": {}}},
        {"functions": {"ToolError": {}}},
        {"functions": {f"t{n}": {} for n in range(65)}},
        {"functions": {"t": {"head": "x"}}},
        {"functions": {"t": {"head": "(\n)"}}},
        {"functions": {"t": {"max_bytes": (1 << 20) + 1}}},
        {"functions": {"t": {"max_bytes": 1 << 20}}, "at_once": 17},
        {**DOUBLE, "at_once": 65},
        {**DOUBLE, "calls": 1_000_001},
        {**DOUBLE, "more": 1},
    ],
)
def test_tools_out_of_bounds_are_refused(server: Server, tools: dict[str, Any]) -> None:
    answer = server.client().post("/execute", json={"code": "1", "tools": tools})
    assert (answer.status_code, error_of(answer)["code"]) == (400, "usage"), answer.text


def test_tools_where_nobody_could_answer_are_refused(server: Server) -> None:
    client, tools = server.client(), {"tools": DOUBLE}
    body = {"code": "1", "background": True, **tools}
    assert client.post("/execute", json=body).status_code == 400
    batch = client.post("/executions/batch", json={"executions": [{"code": "1", **tools}]})
    assert "not for the programs of a batch" in batch.text
    assert (
        client.post("/execute", json={"code": "1", "language": "bash", **tools}).status_code == 400
    )
    sandbox = new_sandbox(client)
    cell = {"code": "1", "language": "bash", **tools}
    assert client.post(f"/sandboxes/{sandbox}/execute", json=cell).status_code == 400
    plain = client.post("/execute", json={"code": "print(1)"}).json()["execution_id"]
    assert client.get(f"/executions/{plain}/calls").status_code == 409


def test_head_that_is_no_python_costs_only_its_signature(server: Server) -> None:
    functions = {"double": {"head": "(number: int = )"}}
    program = Program(server, "print(tools.double(number=4))", functions=functions)
    program.answer(program.call()["call"], result=8)
    assert program.stdout() == "8\n"


def test_nobody_there_ends_calls_with_a_typed_error(brief: Server) -> None:
    program = Program(brief, CATCH.format(4))
    assert program.stdout() == "gone | double: the client that offers the tools is not connected\n"


def test_nobody_answers_and_time_ends_the_call(brief: Server) -> None:
    program = Program(brief, CATCH.format(4))
    with program.client.stream("GET", f"{program.path}/calls") as stream:
        lines = [json.loads(line) for line in stream.iter_lines()]
    assert [line["type"] for line in lines] == ["call", "call_dropped", "end"]
    assert program.stdout() == "timeout | double: no answer within 1 s\n"


def test_client_that_comes_back_finds_its_call(server: Server) -> None:
    program = Program(server, CATCH.format(4))
    program.call()  # and hangs up
    assert program.answer(program.call()["call"], result="back").status_code == 200
    assert program.stdout() == "back\n"


def test_cancelled_execution_ends_its_calls(server: Server) -> None:
    program = Program(server, CATCH.format(4))
    with program.client.stream("GET", f"{program.path}/calls") as stream:
        lines = stream.iter_lines()
        number = json.loads(next(lines))["call"]
        assert server.client().delete(program.path).status_code == 200
        assert json.loads(list(lines)[-1])["type"] == "end"
    assert program.answer(number, result=1).status_code == 409


def test_second_answer_of_a_call_is_refused_before_the_first_is_taken() -> None:
    """Both come in one turn of the loop; the record names who answered first."""

    async def both() -> None:
        tools = RemoteTools(ToolsBody.model_validate({"functions": {"t": {}}}), ServerSettings())
        with tools.listening():
            asked = asyncio.ensure_future(tools.answer(Incoming(1, "t", 2, dict)))
            await asyncio.sleep(0)
            tools.take(1, Answer("ok", b"1"), "alice")
            with pytest.raises(Conflict, match="it is over"):
                tools.take(1, Answer("ok", b"2"), "bob")
            assert (await asked).body == b"1"
        assert tools.actor(1) == "alice"

    asyncio.run(both())
