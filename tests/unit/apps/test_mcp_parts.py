"""Parts of the MCP door that need no sandbox, down to HTTP without a wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from cellwall.apps.inner.transport import InnerWire
from cellwall.apps.mcp.session import Session
from cellwall.apps.mcp.tools import answers
from cellwall.apps.mcp.tools.addresses import address, media_type, place
from cellwall.apps.mcp.tools.arguments import BY_TOOL, checked
from cellwall.apps.mcp.tools.catalog import DESCRIPTIONS, Available, _input_schema
from cellwall.apps.mcp.tools.progress import Progress
from cellwall.apps.mcp.tools.schemas import OUTPUTS
from cellwall.apps.mcp.tools.tools import BY_NAME
from cellwall.apps.mcp.transport.calls import Calls
from cellwall.apps.mcp.transport.events import Events, Share
from cellwall.apps.mcp.transport.visits import GRACE_S, IDLE_S, VisitingClient, Visits
from cellwall.model.errors import Conflict, UsageError
from cellwall.model.execution import Event, Execution, ExecutionError
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Verdict
from cellwall.server.auth.keys import Principal
from cellwall.surface.shared.tasks import Tasks

HERE = Available(("python", "bash"), {"python": "plain", "data": "with pandas"})
ISOLATION = Isolation("jail", IsolationLevel.NAMESPACE, "")


def test_every_tool_is_described_checked_and_done() -> None:
    assert set(BY_TOOL) == set(DESCRIPTIONS) == set(OUTPUTS) == set(BY_NAME)


@pytest.mark.parametrize("tool", BY_TOOL)
def test_schemas_are_proper_and_short(tool: str) -> None:
    asked = _input_schema(BY_TOOL[tool].model_json_schema(), tool, HERE)
    for schema in (asked, OUTPUTS[tool]):
        Draft202012Validator.check_schema(schema)
    text = json.dumps(asked)
    assert "$ref" not in text
    assert '"null"' not in text
    assert len(text) < 4_000


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_is_returned_fits_its_schema(verdict: Verdict) -> None:
    outcome = Outcome(verdict, ISOLATION, exit_code=1)
    results = ({"image/png": "aGk="}, {"image/png": "no base64!"}, {"text/html": "<table>"})
    execution = Execution(
        "id", "python", "out", "", outcome, Limits(), result=float("nan"), results=results
    )
    for made in (answers.execution(execution, 2_000), answers.failure(RuntimeError("secret"))):
        validator = Draft202012Validator(OUTPUTS["run_code"])
        assert not list(validator.iter_errors(made.structured_content))
        json.dumps(made.structured_content, allow_nan=False)
        assert "secret" not in made.model_dump_json()
    made = answers.execution(execution, 2_000)
    assert made.is_error == (verdict not in {Verdict.OK, Verdict.OUTPUT})
    assert made.structured_content["images"] == 1


def structured(execution: Execution, budget_chars: int = 20_000) -> dict[str, Any]:
    made = answers.execution(execution, budget_chars)
    facts: dict[str, Any] = made.structured_content
    assert not list(Draft202012Validator(OUTPUTS["run_code"]).iter_errors(facts))
    return facts


def test_structured_content_begins_with_what_the_model_reads() -> None:
    good = Outcome(Verdict.OK, ISOLATION, exit_code=0)
    facts = structured(Execution("id", "python", "42\n", "", good, Limits()))
    assert next(iter(facts)) == "text"
    assert facts["text"] == "42"
    assert len(json.dumps(facts)) < 150
    late = Outcome(Verdict.WALL_TIME, ISOLATION, notes=("stopped after 5 s",))
    assert "Next: " in structured(Execution("id", "python", "", "", late, Limits()))["text"]


def test_structured_content_has_one_budget_and_a_trace_once() -> None:
    trace = "Traceback (most recent call last):\nValueError: " + "v" * 30_000
    raised = Outcome(Verdict.EXCEPTION, ISOLATION, exit_code=1)
    error = ExecutionError("ValueError", "v" * 30_000, trace)
    stderr = f"before\n{trace}\n"
    facts = structured(
        Execution("id", "python", "", stderr, raised, Limits(), error=error, result=["r" * 9_000])
    )
    assert sum(len(str(value)) for value in facts.values()) < 21_000
    assert json.dumps(facts).count("Traceback (most") == 1
    short = replace(error, value="v", traceback="Traceback (most recent call last):\nValueError: v")
    facts = structured(
        Execution("id", "python", "", f"a\n{short.traceback}\n", raised, Limits(), error=short)
    )
    assert (facts["stderr"], facts["error"]) == ("a\n", {"name": "ValueError", "value": "v"})
    assert json.dumps(facts).count("Traceback (most") == 1


def test_what_only_programs_want_is_beside_it() -> None:
    outcome = Outcome(Verdict.SIGNALLED, ISOLATION, signal=11)
    made = answers.execution(Execution("id", "c", "", "", outcome, Limits()), 2_000)
    meta = made.meta or {}
    assert meta["cellwall/isolation"]["level"] == "namespace"
    assert meta["cellwall/execution"] == {"id": "id", "language": "c", "template": ""}
    assert meta["cellwall/exit_status"] == 139
    assert "usage" not in made.structured_content


def test_schemas_of_results_know_no_lists_of_types() -> None:
    def types(schema: Any) -> Iterator[Any]:
        if isinstance(schema, dict):
            yield from ([schema["type"]] if isinstance(schema.get("type"), (str, list)) else [])
            schema = list(schema.values())
        if isinstance(schema, list):
            for each in schema:
                yield from types(each)

    found = list(types(OUTPUTS))
    assert found
    assert all(isinstance(each, str) for each in found)


@pytest.mark.parametrize("path", ["a.txt", "dir/a b#?.txt", "/tmp/x", "ü%2F", "a//b"])
def test_an_address_names_its_file(path: str) -> None:
    assert place(address("abc", path)) == ("abc", path)


def test_a_path_below_home_is_the_same_file() -> None:
    assert address("abc", "/home/user/a") == address("abc", "a") == address("abc", "./a")
    assert media_type("a.png") == "image/png"


@pytest.mark.parametrize(
    "uri", ["", "cellwall://sandbox/a", "cellwall://sandbox/a/b/files/c", "http://x/files/y"]
)
def test_another_address_is_refused(uri: str) -> None:
    with pytest.raises(UsageError, match="not a file of a sandbox"):
        place(uri)


def test_arguments_are_closed_and_strict() -> None:
    for given in ({"code": "1", "x": 1}, {"code": 1}, {"code": "1", "timeout": "3"}):
        with pytest.raises(UsageError, match="run_code"):
            checked("run_code", given)
    assert checked("run_code", {"code": "1", "timeout": 3}).model_dump()["timeout"] == 3


def test_a_message_about_bad_input_is_bounded() -> None:
    with pytest.raises(UsageError) as caught:
        checked("run_code", {f"x{'y' * 10_000}{n}": "z" * 10_000 for n in range(100)})
    assert len(str(caught.value)) < 2_000


def test_progress_says_time_bytes_and_the_last_line() -> None:
    progress = Progress()
    progress.on_event(Event(1, "stdout", text="one\ntwo\x1b[0m\n"))
    assert progress.sentence() == "running for 0 s, 12 bytes of output: two"
    progress.on_event(Event(2, "stderr", text="z" * 100_000))
    assert len(progress.sentence()) < 200


# -- a client that goes ----------------------------------------------------------------------------


class _NoLibrary:
    async def aclose(self) -> None:
        return


def _a_session() -> Session:
    return Session(_NoLibrary(), None)  # type: ignore[arg-type]  # makes no sandbox


def _a_client() -> VisitingClient:
    session = _a_session()
    who = Principal("alice", "key", "run")
    return VisitingClient(session, Calls(session, {}), Events(Share()), who)


def test_a_closed_session_takes_no_more_and_stops_what_runs() -> None:
    async def main() -> None:
        session = _a_session()
        forever = asyncio.ensure_future(session.perform(asyncio.Event().wait()))
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(Conflict, match="it has ended"):
            await forever
        with pytest.raises(Conflict, match="it has ended"):
            await session.perform(asyncio.sleep(0))

    asyncio.run(main())


def test_a_cancelled_call_is_given_the_time_its_end_takes() -> None:
    ended: list[str] = []

    begun = asyncio.Event()

    async def slow_to_stop() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append("whole")

    async def main() -> None:
        session = _a_session()
        call = asyncio.ensure_future(session.perform(slow_to_stop()))
        await begun.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await session.close()
        assert ended == ["whole"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("is_lost", "comes_back", "expected_s"),
    [(True, False, GRACE_S), (False, False, IDLE_S), (True, True, IDLE_S)],
)
def test_a_session_ends_when_its_client_is_gone(
    is_lost: bool, comes_back: bool, expected_s: float
) -> None:
    async def main() -> None:
        waits: list[float] = []
        loop = asyncio.get_running_loop()
        real = loop.call_later

        def noted(delay: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
            waits.append(delay)
            return real(delay, *rest, **more)

        async def forget(_: object) -> None:
            return

        visits = Visits(forget)
        loop.call_later = noted  # type: ignore[assignment,method-assign]
        visit = visits.add("s", ("alice", "key"), _a_client())
        with visit.connected() as connection:
            connection.is_lost = is_lost
        if comes_back:
            with visit.connected():
                pass
        assert waits[-1] == expected_s
        assert visits.find("s", ("alice", "key")) is visit
        assert visits.find("s", ("bob", "key")) is None
        assert visits.find("s", ("alice", "other")) is None
        await visits.aclose()
        assert visits.get("s") is None

    asyncio.run(main())


# -- HTTP without a wire ---------------------------------------------------------------------------


async def _asked(app: Any, **request: Any) -> httpx.Response:
    tasks = Tasks()
    transport = InnerWire(app, tasks, ("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://inner") as client:
        answer = await client.request("POST", "/p%20q?a=1", **request)
    await tasks.wait_empty()
    return answer


def test_a_request_arrives_as_it_was_sent() -> None:
    async def app(_headers: Any, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["body"] or message["more_body"]:
            body += message["body"]
        said = {"path": scope["path"], "query": scope["query_string"].decode()}
        data = json.dumps({**said, "body": body.decode(), "client": scope["client"]}).encode()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": data})

    async def pieces() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    for content in (b"abc", pieces()):
        answer = asyncio.run(_asked(app, content=content))
        assert (answer.status_code, answer.headers["x"]) == (201, "y")
        expected = {"path": "/p q", "query": "a=1", "body": "abc", "client": ["127.0.0.1", 1]}
        assert answer.json() == expected


@pytest.mark.parametrize("fault", ["before", "silent", "middle", "cut"])
def test_a_broken_answer_is_an_error(fault: str) -> None:
    async def app(_headers: Any, scope: Any, _receive: Any, send: Any) -> None:
        if fault == "before":
            raise RuntimeError("secret")
        if fault == "silent":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if fault == "cut":
            scope["extensions"]["cellwall.transport"].abort()

    with pytest.raises(httpx.TransportError) as caught:
        asyncio.run(_asked(app))
    assert "secret" not in str(caught.value)


def test_a_reader_that_leaves_is_told_to_the_application() -> None:
    told: list[str] = []

    async def app(_headers: Any, _scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(_disconnected(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            await asyncio.sleep(0)
        told.append("gone")

    async def _disconnected(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def main() -> None:
        tasks = Tasks()
        transport = InnerWire(app, tasks, None)
        async with httpx.AsyncClient(transport=transport, base_url="http://inner") as client:
            async with client.stream("GET", "/") as answer:
                await anext(answer.aiter_raw())
            await tasks.wait_empty()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert told == ["gone"]
