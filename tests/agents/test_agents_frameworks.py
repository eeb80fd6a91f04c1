"""Each framework's class, in the hands of that framework: forms, errors, state, cancelling."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from inspect_ai.util import OutputLimitExceededError, SandboxUserUnsupportedError
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from langchain_core.messages import ToolMessage
from llama_index.core.llms import ImageBlock
from llama_index.core.tools.calling import acall_tool, call_tool
from smolagents import Tool

import cellwall
from cellwall.integrations import langchain, llamaindex
from cellwall.integrations.autogen import CellwallCodeExecutor
from cellwall.integrations.code_tool import CodeTool
from cellwall.integrations.inspect_ai import CellwallSandboxConfig, CellwallSandboxEnvironment
from cellwall.integrations.smolagents import CellwallExecutor, CodeFailed
from kit.agents.counting_run import left_open
from kit.images import archives
from kit.images.archives import config_of, layer
from kit.servers import ALICE, Server

DRAW = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = left_open()
    yield
    assert left_open() == before


# -- LangChain -----------------------------------------------------------------------------------


def ask(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_call", "id": "1", "name": "run_code", "args": arguments}


def test_langchain_message_with_a_chart() -> None:
    with langchain.CodeTool("data") as tool:
        message = tool.invoke(ask({"code": DRAW}))
        assert isinstance(message, ToolMessage)
        assert [block["type"] for block in message.content_blocks] == ["text", "image"]
        assert isinstance(message.artifact, cellwall.Execution)
        assert isinstance(asyncio.run(tool.ainvoke(ask({"code": "plt.close()"}))).content, str)
    with langchain.CodeTool("data", images=False) as tool:
        message = tool.invoke(ask({"code": DRAW}))
        assert message.content.startswith("[image 1: PNG")
        assert len(message.artifact.images) == 1


def test_copies_of_frameworks_tools_are_tools() -> None:
    """Of LangChain's kind and of LlamaIndex's, by their own ways to call one."""
    with langchain.CodeTool() as tool:
        tool.invoke({"code": "x = 1"})
        (branch,) = tool.fork()
        with branch:
            branch.invoke({"code": "x = 2"})
            assert (tool.invoke({"code": "x"}), branch.invoke({"code": "x"})) == ("1", "2")
    with llamaindex.CodeTool() as other:
        other.call(code="x = 1")
        (twin,) = other.fork()
        with twin:
            twin.call(code="x = 2")
            assert (other.call(code="x").content, twin.call(code="x").content) == ("1", "2")


def test_langchain_call_that_makes_no_sense() -> None:
    with langchain.CodeTool() as tool:
        message = tool.invoke(ask({"kode": "1"}))
        assert message.status == "error"
        assert "no argument 'kode'" in message.content
        assert tool.invoke({"code": "6 * 7"}) == "42"  # outside of any message


# -- LlamaIndex ----------------------------------------------------------------------------------


def test_llamaindex_output_with_a_chart() -> None:
    with llamaindex.CodeTool("data", languages=("python", "bash")) as tool:
        parameters = tool.metadata.get_parameters_dict()
        assert parameters["required"] == ["code", "language"]
        output = call_tool(tool, {"code": DRAW, "language": "python"})
        assert [block.block_type for block in output.blocks] == ["text", "image"]
        chart = output.blocks[1]
        assert isinstance(chart, ImageBlock)
        assert chart.resolve_image().read(4) == b"\x89PNG"
        assert isinstance(output.raw_output, cellwall.Execution)
        output = asyncio.run(acall_tool(tool, {"code": "false", "language": "bash"}))
        assert output.is_error
        assert "'language' is missing" in call_tool(tool, {"code": "1"}).content


def test_llamaindex_single_argument_comes_without_its_name() -> None:
    with llamaindex.CodeTool() as tool:
        assert call_tool(tool, {"code": "x = 6"}).is_error is False
        assert asyncio.run(acall_tool(tool, {"code": "x * 7"})).content == "42"


# -- smolagents ----------------------------------------------------------------------------------


class Shout(Tool):  # type: ignore[misc] # smolagents has no types
    """A tool that can travel."""

    name = "shout"
    description = "Shout."
    inputs = {"text": {"type": "string", "description": "What to shout."}}  # noqa: RUF012
    output_type = "string"

    def forward(self, text: str) -> str:
        return text.upper()


def test_smolagents_tools_variables_and_answers() -> None:
    with CellwallExecutor() as executor:
        executor.send_tools({"shout": Shout(), "final_answer": object()})
        executor.send_variables({"who": "you", "many": {"a": [1, None]}})
        output = executor("print(shout('hi'), who)\nmany['a'][0] + 1")
        assert (output.output, output.is_final_answer) == ("2", False)
        assert output.logs.startswith("HI you")
        big = {"n": ["x" * 300_000]}
        output = executor(f"final_answer({big!r})")
        assert (output.output, output.is_final_answer) == (big, True)
        assert executor("final_answer({1, 2})").output == "{1, 2}"
        with pytest.raises(CodeFailed, match="more than 900000"):
            executor("final_answer('x' * 1_000_000)")
        with pytest.raises(CodeFailed, match="ZeroDivisionError"):
            executor("1 / 0")


class Where(Tool):  # type: ignore[misc] # smolagents has no types
    """A tool that says where it runs."""

    name = "where"
    description = "Say where."
    inputs = {"more": {"type": "array", "description": "Any.", "nullable": True}}  # noqa: RUF012
    output_type = "integer"

    def forward(self, more: list[int] | None = None) -> int:
        import os

        return os.getpid() + sum(more or [])


class Picture(Tool):  # type: ignore[misc] # smolagents has no types
    """A tool whose result JSON has no word for."""

    name = "picture"
    description = "Draw."
    inputs = {"text": {"type": "string", "description": "What to draw."}}  # noqa: RUF012
    output_type = "image"

    def forward(self, text: str) -> str:
        return text.upper()


def test_smolagents_tools_run_here_and_others_travel() -> None:
    tools = {"where": Where(), "picture": Picture()}
    with CellwallExecutor() as executor:
        executor.send_tools(tools)
        assert executor("where()").output == str(os.getpid())
        assert executor("where([1]) - where(more=None)").output == "1"
        assert executor("picture('x')").output == "'X'"
        with pytest.raises(CodeFailed, match="more: 'x' is not of type"):
            executor("where('x')")
    with CellwallExecutor(tools_inside=True) as executor:
        executor.send_tools(tools)
        assert int(executor("where()").output) < 100  # a pid of the sandbox's


def test_smolagents_tools_run_here_for_sandboxes_of_a_server(server: Server) -> None:
    with (
        cellwall.connect(server.address, ALICE) as client,
        CellwallExecutor(client=client) as executor,
    ):
        executor.send_tools({"where": Where()})
        assert executor("where()").output == str(os.getpid())


def test_smolagents_sets_up_a_sandbox_that_takes_a_dead_ones_place() -> None:
    with CellwallExecutor(limits={"memory_mb": 128}) as executor:
        executor.send_tools({"shout": Shout()})
        executor.send_variables({"who": "you"})
        with pytest.raises(CodeFailed, match="memory"):
            executor("b = bytearray(1 << 30)")
        assert executor("shout(who)").output == "'YOU'"


def test_smolagents_sets_up_a_new_sandbox_that_was_looked_at_before() -> None:
    with CellwallExecutor() as executor:
        executor.send_tools({})
        executor("x = 1")
        executor.sandbox.close()
        executor.sandbox.files.write("in.csv", "1")  # for the next code, in the new one already
        assert executor("final_answer(9)").output == 9


def test_smolagents_refuses_what_cannot_travel() -> None:
    with CellwallExecutor() as executor:
        with pytest.raises(cellwall.UsageError, match="not JSON"):
            executor.send_variables({"who": object()})
        with pytest.raises(cellwall.UsageError, match="managed agent"):
            executor.send_tools({"helper": object()})  # what is no tool is an agent


@pytest.mark.parametrize(
    "code",
    [
        "raise CellwallFinalAnswer('no')",
        "display(CellwallFinalAnswer('{')); raise CellwallFinalAnswer('{')",
        "display(CellwallFinalAnswer('[' * 100_000)); raise CellwallFinalAnswer('')",
    ],
)
def test_smolagents_forged_answers_are_failures(code: str) -> None:
    with CellwallExecutor() as executor:
        executor.send_tools({})
        with pytest.raises(CodeFailed, match="not an answer"):
            executor(code)


# -- AutoGen -------------------------------------------------------------------------------------


def blocks(*codes: str) -> list[CodeBlock]:
    return [CodeBlock(code, "bash" if code.startswith("$") else "python") for code in codes]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_autogen_blocks_share_state_and_stop_at_a_failure() -> None:
    async def conversation() -> None:
        async with CellwallCodeExecutor("data", timeout=20) as executor:
            token = CancellationToken()
            result = await executor.execute_code_blocks(
                [CodeBlock("x = 6", "py"), CodeBlock("echo hi", "sh"), CodeBlock(DRAW, "")], token
            )
            assert (result.exit_code, len(result.images)) == (0, 1)
            assert "hi" in result.output
            result = await executor.execute_code_blocks(blocks("x * 7", "1 / 0", "print(9)"), token)
            assert result.exit_code == 1
            assert [e.text for e in result.executions] == ["42", None]
            await executor.restart()
            result = await executor.execute_code_blocks(blocks("x"), token)
            assert "NameError" in result.output
            with pytest.raises(ValueError, match="brainfuck"):
                await executor.execute_code_blocks([CodeBlock("+", "brainfuck")], token)

    run(conversation())


def test_autogen_time_limit_and_cancelling() -> None:
    async def conversation() -> None:
        async with CellwallCodeExecutor(timeout=0.5) as executor:
            result = await executor.execute_code_blocks(
                blocks("while True: pass"), CancellationToken()
            )
            assert result.exit_code == 124
            executor.timeout = 600
            token = CancellationToken()
            endless = blocks("open('begun', 'w').close()\nwhile True: pass")
            running = asyncio.ensure_future(executor.execute_code_blocks(endless, token))
            while not await asyncio.to_thread(executor.sandbox.files.exists, "begun"):
                pass  # each look is a way there and back
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            result = await executor.execute_code_blocks(blocks("1 + 1"), CancellationToken())
            assert result.output.endswith("2")

    run(conversation())


def test_autogen_is_written_down_and_read_again() -> None:
    made = CellwallCodeExecutor("data", timeout=5, limits=cellwall.Limits(memory_mb=256))
    dumped = json.loads(made.dump_component().model_dump_json())
    read = CodeExecutor.load_component(dumped)
    assert isinstance(read, CellwallCodeExecutor)
    assert read.timeout == 5
    with pytest.raises(cellwall.UsageError, match="files"):
        CellwallCodeExecutor(files={"a": b""}).dump_component()

    async def conversation() -> None:
        async with read:
            assert read.sandbox.limits.memory_mb == 256
            assert read.sandbox.template == "data"

    run(conversation())


# -- Inspect; its own checks are in test_agents_inspect_contract -----------------------------------


def test_inspect_ends_of_commands() -> None:
    async def sample() -> None:
        made = await CellwallSandboxEnvironment.sample_init("task", None, {})
        box = made["default"]
        try:
            missing = await box.exec(["no-such-program"])
            assert (missing.success, missing.returncode) == (False, 127)
            with pytest.raises(TimeoutError):
                await box.exec(["sleep", "600"], timeout=1)
        finally:
            await CellwallSandboxEnvironment.sample_cleanup("task", None, made, False)

    run(sample())


@pytest.mark.cgroups
def test_inspect_command_that_needs_too_much_memory() -> None:
    async def sample() -> None:
        config = CellwallSandboxConfig(limits={"memory_mb": 256})
        made = await CellwallSandboxEnvironment.sample_init("task", config, {})
        try:
            hungry = await made["default"].exec(["python3", "-c", "bytearray(1 << 30)"])
            assert not hungry.success
            assert "memory" in hungry.stderr
        finally:
            await CellwallSandboxEnvironment.sample_cleanup("task", config, made, False)

    run(sample())


def test_inspect_output_above_its_limit() -> None:
    async def sample() -> None:
        with override_max_exec_output_size(64 * 1024):
            made = await CellwallSandboxEnvironment.sample_init("task", None, {})
            try:
                with pytest.raises(OutputLimitExceededError) as caught:
                    await made["default"].exec(["head", "-c", "1000000", "/dev/zero"])
                assert caught.value.truncated_output
            finally:
                await CellwallSandboxEnvironment.sample_cleanup("task", None, made, True)

    run(sample())


def test_inspect_configurations() -> None:
    read = CellwallSandboxEnvironment.config_deserialize({"template": "data"})
    assert read == CellwallSandboxConfig(template="data")
    with pytest.raises(ValueError, match="tempalte"):
        CellwallSandboxEnvironment.config_deserialize({"tempalte": "data"})


@pytest.mark.root
def test_inspect_users_of_an_image(tmp_path: Path) -> None:
    """Tools that run as root need `user="root"`, which may run commands as any other user."""
    root = layer(archives.python_root())
    path = archives.docker_archive(tmp_path / "task.tar", [root], config_of([root], User="app"))

    async def said(config: CellwallSandboxConfig, user: str | None, *cmd: str) -> str:
        made = await CellwallSandboxEnvironment.sample_init("t", config, {})
        box = made["default"]
        try:
            return (await box.exec(list(cmd), user=user)).stdout
        finally:
            await CellwallSandboxEnvironment.sample_cleanup("t", config, made, False)

    async def scenario() -> None:
        as_root = CellwallSandboxConfig(image=str(path), user="root")
        own = CellwallSandboxConfig(image=str(path))
        assert await said(as_root, None, "id", "-un") == "root\n"
        assert await said(as_root, "root", "id", "-un") == "root\n"
        assert await said(as_root, "app", "sh", "-c", 'id -un; echo "$1"', "-", "-x y") == (
            "app\n-x y\n"
        )
        assert await said(own, "app", "id", "-un") == "app\n"
        with pytest.raises(SandboxUserUnsupportedError, match="user='root'"):
            await said(own, "root", "id")

    run(scenario())


@pytest.mark.root
def test_code_tool_on_an_image(tmp_path: Path) -> None:
    root = layer(archives.python_root())
    path = archives.docker_archive(tmp_path / "task.tar", [root], config_of([root], User="app"))
    code = {"code": "import os; print(os.getuid())"}
    for user, said in ((None, "1001"), ("root", "0")):
        with CodeTool(image=str(path), user=user) as tool:
            assert said in tool.call(code).text
