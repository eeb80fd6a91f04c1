"""The Model Context Protocol, driven by the official client: every promise at both doors."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from mcp.shared.exceptions import MCPError

from kit.server.mcp_doors import (
    Door,
    StdioDoor,
    Visitor,
    at,
    client_process,
    facts_of,
    images_of,
    meta_of,
    new_sandbox,
    seen_on_host,
    soon_s,
    text_of,
    wait_seen,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp.client.client import Client

    from kit.servers import Server

pytestmark = pytest.mark.timeout(300)  # a client and its server take seconds of CPU to start

TOOLS = {
    "run_code",
    "create_sandbox",
    "execute",
    "run_command",
    "read_file",
    "write_file",
    "list_files",
    "upload",
    "download",
    "destroy_sandbox",
    "fork_sandbox",
    "snapshot_sandbox",
    "restore_snapshot",
    "list_snapshots",
    "delete_snapshot",
}
PLOT = "import matplotlib.pyplot as plt\nplt.plot([3, 1, 2])\nplt.show()\nprint('drawn')"


@pytest.fixture(scope="module", params=["stdio", "http"])
def door(request: pytest.FixtureRequest, server: Server) -> Door:
    return StdioDoor() if request.param == "stdio" else at(server)


@pytest.fixture(scope="module")
def visitor(door: Door) -> Iterator[Visitor]:
    """One client for all tests that need no other: to start one takes a second or five."""
    made = Visitor(door)
    yield made
    made.leave()


def marker_of(number: int) -> str:
    """Return a number of seconds that no other test sleeps."""
    return f"{os.getpid()}.{number}{time.monotonic_ns() % 10**6}"


# -- what there is ---------------------------------------------------------------------------------


def test_tools_have_schemas_that_name_what_is_here(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == TOOLS
        asked = tools["run_code"].input_schema
        assert asked["additionalProperties"] is False
        assert asked["required"] == ["code"]
        assert {"python", "data"} <= set(asked["properties"]["template"]["enum"])
        assert "python" in asked["properties"]["language"]["enum"]
        for tool in tools.values():
            assert tool.description
            assert tool.output_schema is not None
            assert tool.annotations is not None
        assert tools["read_file"].annotations is not None
        assert tools["read_file"].annotations.read_only_hint

    visitor.play(scenario)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_both_ages_of_the_protocol_are_spoken(door: Door, mode: str) -> None:
    async def main() -> None:
        async with door.client(mode) as client:
            result = await client.call_tool("run_code", {"code": "print(6 * 7)"})
            assert text_of(result) == "42"

    asyncio.run(main())


# -- running ---------------------------------------------------------------------------------------


def test_a_program_with_a_chart_gives_text_and_image(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        result = await client.call_tool("run_code", {"code": PLOT, "template": "data"})
        assert not result.is_error
        assert text_of(result).startswith("drawn\n\n[image 1: PNG, ")
        (image,) = images_of(result)
        assert image.mime_type == "image/png"
        assert base64.b64decode(image.data).startswith(b"\x89PNG")
        facts = facts_of(result)
        assert (facts["verdict"], facts["stdout"], facts["images"]) == ("ok", "drawn\n", 1)
        about = meta_of(result)["cellwall/isolation"]
        assert about["level"] in {"namespace", "kernel", "vm"}

    visitor.play(scenario)


def test_a_new_context_has_variables_and_a_language_of_its_own(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        made = await client.call_tool("create_sandbox", {"template": "python"})
        asked = {"sandbox_id": facts_of(made)["sandbox_id"]}

        async def say(code: str, **more: str) -> str:
            return text_of(await client.call_tool("execute", {**asked, "code": code, **more}))

        await say("x = 1")
        assert await say("x = 2; x", context="other") == "2"
        assert await say("x") == "1"
        assert await say("y=3; echo $y", context="third", language="bash") == "3"
        assert await say("echo $((y + 1))", context="third") == "4"
        await client.call_tool("destroy_sandbox", asked)

    visitor.play(scenario)


@pytest.mark.parametrize("code", ["", " \n"])
def test_an_empty_program_ends_well(visitor: Visitor, code: str) -> None:
    async def scenario(client: Client) -> None:
        sandbox = await new_sandbox(client)
        for answer in (
            await client.call_tool("run_code", {"code": code}),
            await client.call_tool("execute", {"code": code, "sandbox_id": sandbox}),
        ):
            assert not answer.is_error, text_of(answer)
            assert "ended well" in text_of(answer)

    visitor.play(scenario)


def test_a_table_is_markdown(visitor: Visitor) -> None:
    code = "import pandas\npandas.DataFrame({'a': [1], 'b': ['x|y']})"

    async def scenario(client: Client) -> None:
        result = await client.call_tool("run_code", {"code": code, "template": "data"})
        table = "|  | a | b |\n| --- | --- | --- |\n| 0 | 1 | x\\|y |"
        assert text_of(result) == table
        assert facts_of(result)["tables"] == [table]

    visitor.play(scenario)


@pytest.mark.parametrize(
    ("code", "verdict", "said"),
    [
        ("print(1); 1 / 0", "exception", "ZeroDivisionError: division by zero"),
        ("import nowhere", "exception", "only what the template has can be imported"),
        ("raise SystemExit(3)", "nonzero_exit", "it ended with exit status 3"),
        ("while True: pass", "wall_time", "Limit: wall_s = 1. Used: "),
        pytest.param(
            "x = bytearray(10**9)\nfor n in range(0, 10**9, 4096): x[n] = 1",
            "memory",
            "in pieces",
            marks=pytest.mark.cgroups,
        ),
    ],
)
def test_a_bad_end_says_what_happened_and_what_to_try(
    visitor: Visitor, code: str, verdict: str, said: str
) -> None:
    limits = {"memory_mb": 128}

    async def scenario(client: Client) -> None:
        asked = {"code": code, "template": "python", "timeout": 1.0, "limits": limits}
        if verdict == "memory":
            asked["timeout"] = 30.0
        result = await client.call_tool("run_code", asked)
        assert result.is_error
        assert facts_of(result)["verdict"] == verdict
        assert said in text_of(result)
        assert " Next: " in text_of(result)

    visitor.play(scenario)


def test_files_stdin_and_words_go_in_and_files_come_out(visitor: Visitor) -> None:
    code = "import sys\nopen('out.bin', 'wb').write(b'\\x00\\xff')\n"
    code += "print(sys.stdin.read(), sys.argv[1:], open('in.txt').read())"

    async def scenario(client: Client) -> None:
        asked = {
            "code": code,
            "stdin": "typed",
            "args": ["a", "b"],
            "files": {"in.txt": "given"},
            "collect": ["out.bin"],
        }
        result = await client.call_tool("run_code", asked)
        assert facts_of(result)["stdout"] == "typed ['a', 'b'] given\n"
        (kept,) = (each for each in result.content if each.type == "resource")
        blob = kept.resource.model_dump()["blob"]
        assert base64.b64decode(blob) == b"\x00\xff"

    visitor.play(scenario)


def test_a_sandbox_keeps_variables_and_files(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        sandbox = await new_sandbox(client)
        call = {"sandbox_id": sandbox}
        await client.call_tool("execute", {**call, "code": "x = 41\nopen('f', 'w').write('kept')"})
        result = await client.call_tool("execute", {**call, "code": "x + 1"})
        assert text_of(result) == "42"
        result = await client.call_tool("run_command", {**call, "command": "cat f; exit 4"})
        assert text_of(result).startswith("kept\n\n[nonzero_exit] it ended with exit status 4.")
        assert facts_of(result)["exit_code"] == 4
        result = await client.call_tool("destroy_sandbox", call)
        assert not result.is_error
        result = await client.call_tool("execute", {**call, "code": "x"})
        assert "this session has none of that id. Next: make one with create_sand" in text_of(
            result
        )

    visitor.play(scenario)


def test_big_output_is_cut_and_the_rest_can_be_read(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        sandbox = await new_sandbox(client, template="python")
        code = "for n in range(50_000): print('line', n)"
        result = await client.call_tool("execute", {"sandbox_id": sandbox, "code": code})
        said = text_of(result)
        assert len(said) <= 20_000
        assert said.startswith("line 0\n")
        assert said.endswith("line 49999")
        path = facts_of(result)["left_out"]["stdout"]
        assert f"all of it is in {path}" in said
        asked = {"sandbox_id": sandbox, "path": path, "first_line": 25_001, "lines": 2}
        result = await client.call_tool("read_file", asked)
        assert text_of(result) == "line 25000\nline 25001\n"
        assert facts_of(result)["lines"] == 50_000

    visitor.play(scenario)


def test_more_output_than_is_kept_is_counted(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        code = "import sys\nfor _ in range(40): sys.stdout.write('x' * 1_000_000)"
        result = await client.call_tool("run_code", {"code": code, "template": "python"})
        facts = facts_of(result)
        assert facts["verdict"] == "output"
        assert facts["truncated"]["stdout"] > 20_000_000
        assert len(text_of(result)) <= 20_000

    visitor.play(scenario)


# -- while it runs ---------------------------------------------------------------------------------


def test_a_long_run_reports_its_progress(visitor: Visitor) -> None:
    told: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        told.append((progress, message))

    async def scenario(client: Client) -> None:
        code = "import time\nprint('begun', flush=True)\ntime.sleep(3.2)\nprint('done')"
        result = await client.call_tool(
            "run_code", {"code": code, "template": "python"}, progress_callback=on_progress
        )
        assert facts_of(result)["stdout"] == "begun\ndone\n"

    visitor.play(scenario)
    assert len(told) >= 2
    assert [each[0] for each in told] == sorted({each[0] for each in told})
    assert "6 bytes of output: begun" in str(told[-1][1])


@pytest.mark.parametrize("tool", ["run_code", "run_command"])
def test_cancelling_a_call_kills_the_program(visitor: Visitor, tool: str) -> None:
    marker = marker_of(1)

    async def scenario(client: Client) -> None:
        asked: dict[str, Any] = {"timeout": 300.0}
        if tool == "run_code":
            asked |= {"code": f"exec sleep {marker}", "language": "bash", "template": "python"}
        else:
            asked |= {"sandbox_id": await new_sandbox(client), "command": f"exec sleep {marker}"}
        call = asyncio.ensure_future(client.call_tool(tool, asked))
        await asyncio.to_thread(wait_seen, marker, expected=True, limit_s=60)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.to_thread(wait_seen, marker, expected=False, limit_s=30)
        result = await client.call_tool("run_code", {"code": "print('on')"})
        assert text_of(result) == "on"  # the session goes on

    visitor.play(scenario)


def test_a_cancelled_cell_leaves_its_variables(visitor: Visitor) -> None:
    marker = marker_of(2)

    async def scenario(client: Client) -> None:
        call = {"sandbox_id": await new_sandbox(client, template="python")}
        await client.call_tool("execute", {**call, "code": "kept = 7"})
        code = f"import subprocess\nsubprocess.run(['sleep', {marker!r}])"
        running = asyncio.ensure_future(client.call_tool("execute", {**call, "code": code}))
        await asyncio.to_thread(wait_seen, marker, expected=True, limit_s=60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.to_thread(wait_seen, marker, expected=False, limit_s=30)
        result = await client.call_tool("execute", {**call, "code": "kept"})
        assert text_of(result) == "7"

    visitor.play(scenario)


def test_two_clients_at_once_do_not_see_each_other(door: Door) -> None:
    async def main() -> None:
        async with asyncio.timeout(200), door.client() as one, door.client() as two:
            first, second = await asyncio.gather(new_sandbox(one), new_sandbox(two))
            assert first != second
            calls = [
                client.call_tool("execute", {"sandbox_id": sandbox, "code": f"me = {n}; me"})
                for n, (client, sandbox) in enumerate([(one, first), (two, second)] * 4)
            ]
            said = [text_of(result) for result in await asyncio.gather(*calls)]
            assert said == [str(n) for n in range(8)]
            result = await two.call_tool("execute", {"sandbox_id": first, "code": "me"})
            assert result.is_error
            assert "this session has none of that id" in text_of(result)

    asyncio.run(main())


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["killed", "gone"])
def test_sandboxes_die_with_their_client(door: Door, end: str) -> None:
    marker = marker_of(3)
    then = "await asyncio.Event().wait()" if end == "killed" else "pass"
    process = client_process(door, marker, then)
    try:
        if end == "killed":
            assert seen_on_host(marker)
            process.kill()
        assert wait_seen(marker, expected=False, limit_s=60) <= soon_s()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_client_that_stays_keeps_its_sandboxes(door: Door) -> None:
    marker = marker_of(4)
    process = client_process(door, marker, "await asyncio.Event().wait()")
    try:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert seen_on_host(marker)
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


# -- files -----------------------------------------------------------------------------------------


def test_files_go_in_and_out_as_text_and_as_resources(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        call = {"sandbox_id": await new_sandbox(client, template="python")}
        text = {**call, "path": "notes/a b.txt", "content": "one\ntwo\n"}
        written = await client.call_tool("write_file", text)
        uri = facts_of(written)["uri"]
        assert uri == f"cellwall://sandbox/{call['sandbox_id']}/files/notes/a%20b.txt"
        await client.call_tool("write_file", {**text, "content": "three\n", "append": True})
        (read,) = (await client.read_resource(uri)).contents
        assert read.model_dump()["text"] == "one\ntwo\nthree\n"
        blob = base64.b64encode(b"\x00\x01\xfe").decode()
        await client.call_tool("upload", {**call, "path": "raw.bin", "blob": blob})
        copied = {**call, "path": "copy.bin", "uri": uri.replace("notes/a%20b.txt", "raw.bin")}
        await client.call_tool("upload", copied)
        result = await client.call_tool("download", {**call, "path": "copy.bin"})
        kinds = {each.type: each for each in result.content}
        assert kinds["resource"].model_dump()["resource"]["blob"] == blob
        data = {**call, "path": "d.txt", "uri": "data:text/plain,a%20b"}
        await client.call_tool("upload", data)
        listed = await client.call_tool("list_files", {**call, "depth": 2})
        assert "| d.txt | file | 3 |" in text_of(listed).replace("/home/user/", "")
        names = {each.uri.rpartition("/files/")[2] for each in await _resources(client)}
        assert names == {"notes/a%20b.txt", "raw.bin", "copy.bin", "d.txt"}
        templates = (await client.list_resource_templates()).resource_templates
        assert templates[0].uri_template == "cellwall://sandbox/{sandbox_id}/files/{+path}"

    visitor.play(scenario)


def test_lines_of_a_file_are_those_of_other_tools(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        file = {"sandbox_id": await new_sandbox(client, template="python"), "path": "lines"}
        content = "one\ftwo\x85\nthree\u2028\r\nfour\vfive\n"
        await client.call_tool("write_file", {**file, "content": content})
        for number, begins in enumerate(("one", "three", "four"), 1):
            window = {**file, "first_line": number, "lines": 1}
            facts = facts_of(await client.call_tool("read_file", window))
            assert facts["text"].startswith(begins)
            assert facts["lines"] == 3
        beyond = await client.call_tool("read_file", {**file, "first_line": 4})
        assert "it has 3 lines" in text_of(beyond)

    visitor.play(scenario)


def test_a_file_is_read_as_it_is(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        file = {"sandbox_id": await new_sandbox(client, template="python"), "path": "t.csv"}
        for content in (
            "a,b\r1,2\r3,4",
            "a\r\nb\r\n",
            "\x1b[1mred\x1b[0m\x07\0end\n",
            "ab\b\b c\n",
        ):
            await client.call_tool("write_file", {**file, "content": content})
            result = await client.call_tool("read_file", file)
            assert text_of(result) == content
            assert facts_of(result)["text"] == content
        printed = await client.call_tool(
            "run_command", {"sandbox_id": file["sandbox_id"], "command": "printf 'a\rb\n'"}
        )
        assert text_of(printed) == "b\n"  # what a terminal shows of it

    visitor.play(scenario)


async def _resources(client: Client) -> list[Any]:
    return (await client.list_resources()).resources


def test_an_image_file_is_looked_at(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        call = {"sandbox_id": await new_sandbox(client, template="data")}
        code = PLOT.replace("plt.show()", "plt.savefig('chart.png'); plt.close()")
        await client.call_tool("execute", {**call, "code": code})
        result = await client.call_tool("read_file", {**call, "path": "chart.png"})
        (image,) = images_of(result)
        assert base64.b64decode(image.data).startswith(b"\x89PNG")

    visitor.play(scenario)


def test_a_file_that_is_too_large_is_refused_with_a_way_out(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        call = {"sandbox_id": await new_sandbox(client, template="python")}
        await client.call_tool("run_command", {**call, "command": "truncate -s 20M big"})
        for tool in ("read_file", "download"):
            result = await client.call_tool(tool, {**call, "path": "big"})
            assert result.is_error
            assert "Next: read a part of it with run_command" in text_of(result)

    visitor.play(scenario)


# -- bad input -------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("run_code", {"cod": "1"}, "did you mean 'code'? Next: call it as run_code(code, language?,"),
    ("run_code", {}, "argument 'code' is missing"),
    ("run_code", {"code": 5}, "argument 'code': input should be a valid string, not 5"),
    ("run_code", {"code": "1", "timeout": "soon"}, "argument 'timeout'"),
    ("run_code", {"code": "1", "timeout": -1}, "greater than 0, not -1"),
    ("run_code", {"code": "1", "template": "nope"}, "Next: use one of python, "),
    ("run_code", {"code": "1", "language": "cobol"}, "language: 'cobol' is not available here"),
    ("run_code", {"code": "1", "limits": {"memory": 5}}, "did you mean 'memory_mb'?"),
    ("run_code", {"code": "1", "files": {"../x": ""}}, "leads out of the working directory"),
    ("execute", {"sandbox_id": "x", "code": "1"}, "Next: make one with create_sandbox"),
    ("execute", {"sandbox_id": 7, "code": "1"}, "argument 'sandbox_id'"),
    ("destroy_sandbox", {"sandbox_id": "../x"}, "this session has none of that id"),
    ("upload", {"sandbox_id": "x", "path": "a"}, "give either blob or uri"),
    ("upload", {"sandbox_id": "x", "path": "a", "blob": "%%"}, "blob: it is not base64"),
    ("upload", {"sandbox_id": "x", "path": "a", "uri": "file:///etc/passwd"}, "is not a file of a"),
    ("nothing", {}, "there is no 'nothing'. Next: there are run_code, "),
]


def test_bad_input_gets_a_message_a_model_can_act_on(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        for tool, asked, said in BAD:
            result = await client.call_tool(tool, asked)
            assert result.is_error, (tool, asked)
            assert text_of(result).startswith("Not done: "), text_of(result)
            assert said in text_of(result), text_of(result)
            assert list(facts_of(result)) == ["text", "failure"]

    visitor.play(scenario)


@pytest.mark.parametrize(
    "uri", ["file:///etc/passwd", "cellwall://sandbox/x/files/a", "cellwall://sandbox/", "x"]
)
def test_a_resource_that_is_not_yours_is_none(visitor: Visitor, uri: str) -> None:
    async def scenario(client: Client) -> None:
        with pytest.raises(MCPError, match="Not done: "):
            await client.read_resource(uri)

    visitor.play(scenario)


def test_missing_file_says_so(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        call = {"sandbox_id": await new_sandbox(client, template="python"), "path": "nowhere"}
        for tool in ("read_file", "list_files", "download"):
            result = await client.call_tool(tool, call)
            assert result.is_error
            assert facts_of(result)["failure"]["code"] == "file"

    visitor.play(scenario)


@pytest.mark.cgroups
def test_a_context_that_died_says_why_and_its_sandbox_goes_on(visitor: Visitor) -> None:
    async def scenario(client: Client) -> None:
        call = {
            "sandbox_id": await new_sandbox(client, template="python", limits={"memory_mb": 96})
        }
        code = "x = bytearray(10**9)\nfor n in range(0, 10**9, 4096): x[n] = 1"
        result = await client.call_tool("execute", {**call, "code": code})
        assert facts_of(result)["verdict"] == "memory"
        assert "files and the rest of the sandbox stay" in text_of(result)
        result = await client.call_tool("execute", {**call, "code": "print(1)"})
        assert facts_of(result)["verdict"] == "ok"
        assert "this ran in a new one" in text_of(result)

    visitor.play(scenario)
