"""Adapters of agent kits, run with the kits themselves and scripted models.

Run by `test_agents_kits` in an environment of its own, which has the kits' packages.
"""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

import cellwall


class TestDspy:
    """DSPy: a session of a sandbox behind its protocol of an interpreter."""

    @pytest.fixture
    def session(self) -> Any:
        from cellwall.integrations.dspy import CellwallInterpreter

        with CellwallInterpreter({"double": lambda number: number * 2}) as made:
            yield made

    def test_is_one_of_theirs(self, session: Any) -> None:
        from dspy.primitives.code_interpreter import CodeInterpreter

        assert isinstance(session, CodeInterpreter)

    def test_state_tools_and_variables(self, session: Any) -> None:
        assert session.execute("x = double(number=20)") is None
        assert session.execute("print(x + y['n'])", {"y": {"n": 2}}) == "42"
        assert session.execute("print('a'); x + 1") == "a\n41"

    def test_errors_are_of_their_kinds(self, session: Any) -> None:
        from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError

        with pytest.raises(SyntaxError):
            session.execute("x = (")
        with pytest.raises(CodeExecutionError, match="ZeroDivisionError"):
            session.execute("1 / 0")
        with pytest.raises(CodeInterpreterError, match="no names"):
            session.execute("1", {"SUBMIT": 1})
        assert session.execute("print(6 * 7)") == "42"

    def test_submitted_values_end_the_code(self, session: Any) -> None:
        from dspy.primitives.code_interpreter import CodeExecutionError, FinalOutput

        assert session.execute("SUBMIT(5)\nprint('not reached')") == FinalOutput({"output": 5})
        session.output_fields = [{"name": "a"}, {"name": "b"}]
        said = session.execute("try: SUBMIT(1, b=2)\nexcept Exception as e: print(e)")
        assert "by position or by name" in said
        assert session.execute("SUBMIT(1, [2])") == FinalOutput({"a": 1, "b": [2]})
        with pytest.raises(CodeExecutionError, match="SUBMIT takes a, b"):
            session.execute("SUBMIT(1)")

    def test_after_its_end_nothing_runs(self, session: Any) -> None:
        from dspy.primitives.code_interpreter import CodeInterpreterError

        session.execute("x = 1")
        session._sandbox.close()
        with pytest.raises(CodeInterpreterError):
            session.execute("x")
        with pytest.raises(CodeInterpreterError):
            session.execute("1")

    def test_a_module_of_theirs_answers_by_it(self) -> None:
        import dspy
        from dspy.utils import DummyLM

        from cellwall.integrations.dspy import CellwallInterpreter

        code = "```python\nSUBMIT(answer=str(sum(int(word) for word in text.split())))\n```"
        replies = [{"reasoning": "add", "code": code}, {"reasoning": "add", "code": code}]
        with dspy.context(lm=DummyLM(replies)):
            module = dspy.RLM("text -> answer", interpreter_factory=CellwallInterpreter)
            assert module(text="1 2 39").answer == "42"


class TestMiniSweAgent:
    """mini-swe-agent: each command a shell, until one hands in the work."""

    @pytest.fixture
    def environment(self) -> Any:
        from cellwall.integrations.mini_swe_agent import CellwallEnvironment

        with CellwallEnvironment(env={"MARK": "m"}, timeout=5) as made:
            yield made

    def test_commands_share_files_and_no_shell(self, environment: Any) -> None:
        environment.execute({"command": "cd /tmp; echo $MARK > ~/f; X=1"})
        said = environment.execute({"command": "cat f; echo $X; ls nix; exit 3"})
        assert said["output"].startswith("m\n\n")
        assert said["returncode"] == 3

    def test_late_commands_say_so(self, environment: Any) -> None:
        said = environment.execute({"command": "echo begun; sleep 60"}, timeout=1)
        assert (said["returncode"], said["output"]) == (124, "begun\n")
        assert "wall" in said["exception_info"]

    def test_nothing_of_this_process_is_told(
        self, environment: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("A_SECRET_OF_THE_HOST", "s")
        told = environment.get_template_vars(more=1)
        assert (told["system"], told["more"]) == ("Linux", 1)
        assert "A_SECRET_OF_THE_HOST" not in told
        assert "A_SECRET" not in environment.execute({"command": "env"})["output"]

    def test_an_agent_of_theirs_submits(self, environment: Any) -> None:
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.models.test_models import DeterministicModel, make_output

        outputs = [
            make_output("work", [{"command": "echo 42 > answer"}]),
            make_output(
                "done",
                [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer"}],
            ),
        ]
        model = DeterministicModel(outputs=outputs)
        agent = DefaultAgent(model, environment, system_template="s", instance_template="{{task}}")
        ended = agent.run("answer")
        assert (ended["exit_status"], ended["submission"].strip()) == ("Submitted", "42")


class TestStrands:
    """Strands: commands that stream, files, and the tools that an agent gets."""

    @pytest.fixture
    def sandbox(self) -> Any:
        from cellwall.integrations.strands import CellwallSandbox

        with CellwallSandbox() as made:
            yield made

    def test_output_comes_before_the_end(self, sandbox: Any) -> None:
        from strands.sandbox.types import StreamChunk

        async def read() -> tuple[list[Any], Any]:
            seen = [
                each
                async for each in sandbox.execute_streaming(
                    "echo $A; echo err >&2; exit 3", env={"A": "out"}, cwd="/tmp"
                )
            ]
            return [each for each in seen if isinstance(each, StreamChunk)], seen[-1]

        chunks, last = asyncio.run(read())
        assert {(each.stream_type, each.data) for each in chunks} == {
            ("stdout", "out\n"),
            ("stderr", "err\n"),
        }
        assert (last.exit_code, last.stdout, last.stderr) == (3, "out\n", "err\n")

    def test_late_commands_raise_with_their_output(self, sandbox: Any) -> None:
        from strands.sandbox.errors import SandboxTimeoutError

        with pytest.raises(SandboxTimeoutError) as caught:
            asyncio.run(sandbox.execute("echo begun; sleep 60", timeout=1))
        assert caught.value.stdout == "begun\n"

    def test_files_and_code(self, sandbox: Any) -> None:
        from strands.sandbox.errors import SandboxPathNotFoundError

        async def use() -> None:
            await sandbox.write_file("a/b.bin", b"\x00\xff")
            assert await sandbox.read_file("a/b.bin") == b"\x00\xff"
            assert [(e.name, e.is_dir, e.size) for e in await sandbox.list_files("a")] == [
                ("b.bin", False, 2)
            ]
            await sandbox.remove_file("a/b.bin")
            with pytest.raises(FileNotFoundError):
                await sandbox.read_file("a/b.bin")
            with pytest.raises(SandboxPathNotFoundError):
                await sandbox.list_files("nix")
            done = await sandbox.execute_code("print(6 * 7)", "python3")
            assert (done.exit_code, done.stdout) == (0, "42\n")

        asyncio.run(use())

    def test_an_agent_of_theirs_has_the_tools(self, sandbox: Any) -> None:
        from strands import Agent

        agent = Agent(sandbox=sandbox, model=SimpleNamespace(config={}, stateful=False))
        assert {"sandbox_shell", "sandbox_file_editor"} <= set(agent.tool_names)
        said = agent.tool.sandbox_shell(command="echo 42")
        assert "42" in str(said)


class TestGoogleAdk:
    """ADK: a sandbox for each session, a cell for each code block."""

    @pytest.fixture
    def executor(self) -> Any:
        from cellwall.integrations.google_adk import CellwallCodeExecutor

        with CellwallCodeExecutor(most_sessions=2, timeout_seconds=5) as made:
            yield made

    def run(self, executor: Any, session: str, code: str, **more: Any) -> Any:
        from google.adk.code_executors.code_execution_utils import CodeExecutionInput

        context = SimpleNamespace(session=SimpleNamespace(id=session))
        return executor.execute_code(context, CodeExecutionInput(code=code, **more))

    def test_sessions_keep_state_and_share_none(self, executor: Any) -> None:
        self.run(executor, "a", "x = 41")
        assert self.run(executor, "a", "x + 1").stdout == "42\n"
        other = self.run(executor, "b", "x")
        assert "NameError" in other.stderr
        assert other.exit_code != 0

    def test_the_oldest_session_makes_room(self, executor: Any) -> None:
        first = executor.sandbox_of("a")
        executor.sandbox_of("b")
        executor.sandbox_of("c")
        assert first.status == "stopped"

    def test_close_destroys_every_session(self, executor: Any) -> None:
        sandboxes = [executor.sandbox_of(each) for each in "ab"]
        assert [each.run("6 * 7").text for each in sandboxes] == ["42", "42"]
        executor.close()
        assert [each.status for each in sandboxes] == ["stopped", "stopped"]

    def test_files_images_and_limits(self, executor: Any) -> None:
        from google.adk.code_executors.code_execution_utils import File

        done = self.run(
            executor, "a", "print(open('in.txt').read())", input_files=[File("in.txt", "hello")]
        )
        assert done.stdout == "hello\n"
        late = self.run(executor, "a", "while True: pass")
        assert "wall_time" in late.stderr

    def test_an_agent_of_theirs_runs_code(self, executor: Any) -> None:
        from google.adk.agents import LlmAgent
        from google.adk.models.base_llm import BaseLlm
        from google.adk.models.llm_response import LlmResponse
        from google.adk.runners import InMemoryRunner
        from google.genai import types

        class Scripted(BaseLlm):
            async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
                said = str(request.contents[-1])
                text = "it is 42" if "42" in said else "```python\nprint(6 * 7)\n```"
                part = types.Part(text=text)
                yield LlmResponse(content=types.Content(role="model", parts=[part]))

        agent = LlmAgent(name="a", model=Scripted(model="scripted"), code_executor=executor)

        async def ask() -> list[str]:
            runner = InMemoryRunner(agent=agent, app_name="app")
            session = await runner.session_service.create_session(app_name="app", user_id="u")
            message = types.Content(role="user", parts=[types.Part(text="what is it?")])
            said: list[str] = []
            async for event in runner.run_async(
                user_id="u", session_id=session.id, new_message=message
            ):
                results = [each.code_execution_result for each in _parts(event)]
                said += [each.output for each in results if each is not None]
            return said

        assert any("42" in each for each in asyncio.run(ask()))


class TestGoogleAdkEnvironment:
    """ADK: the shell and the editor that its toolset gives to an agent."""

    @pytest.fixture
    def environment(self) -> Any:
        from cellwall.integrations.google_adk import CellwallEnvironment

        made = CellwallEnvironment(files={"old.txt": "one\ntwo\n"})
        yield made
        asyncio.run(made.close())

    def test_is_one_of_theirs_and_keeps_files(self, environment: Any) -> None:
        from google.adk.environment import BaseEnvironment

        async def use() -> None:
            with pytest.raises(RuntimeError, match="initialize"):
                await environment.execute("true")
            await environment.initialize()
            await environment.initialize()
            assert environment.is_initialized
            where = await environment.execute("pwd; echo err >&2; exit 3")
            assert where.stdout == f"{environment.working_dir}\n"
            assert (where.stderr, where.exit_code, where.timed_out) == ("err\n", 3, False)
            await environment.write_file("a/b.bin", b"\x00\xff")
            assert await environment.read_file(environment.working_dir / "a/b.bin") == b"\x00\xff"
            with pytest.raises(FileNotFoundError):
                await environment.read_file("nix")
            with pytest.raises(PermissionError):
                await environment.write_file("/etc/x", "x")

        assert isinstance(environment, BaseEnvironment)
        asyncio.run(use())

    def test_late_commands_say_so(self, environment: Any) -> None:
        async def use() -> Any:
            await environment.initialize()
            return await environment.execute("echo begun; sleep 60", timeout=1)

        late = asyncio.run(use())
        assert (late.timed_out, late.stdout) == (True, "begun\n")
        assert late.exit_code != 0

    def test_after_the_sandbox_ended_a_command_says_so_and_is_not_run(
        self, environment: Any
    ) -> None:
        async def use() -> None:
            await environment.initialize()
            environment._keeper.take()[0].close()
            with pytest.raises(FileNotFoundError):
                await environment.read_file("old.txt")
            said = await environment.execute("echo ran > mark")
            assert (said.exit_code, said.stdout) == (125, "")
            assert "has ended" in said.stderr
            assert (await environment.execute("ls")).stdout == "old.txt\n"

        asyncio.run(use())

    def test_close_destroys_what_it_made(self, environment: Any) -> None:
        from cellwall.integrations.google_adk import CellwallEnvironment

        async def use(each: Any) -> Any:
            await each.initialize()
            sandbox = each._keeper.take()[0]
            await each.close()
            await each.close()
            with pytest.raises(RuntimeError, match="initialize"):
                await each.read_file("old.txt")
            return sandbox

        assert asyncio.run(use(environment)).status == "stopped"
        with cellwall.Sandbox("python") as given:
            assert asyncio.run(use(CellwallEnvironment(sandbox=given))) is given
            assert given.run("6 * 7").text == "42"

    def test_an_agent_of_theirs_has_the_tools(self, environment: Any) -> None:
        from google.adk.tools.environment import EnvironmentToolset

        async def use() -> None:
            toolset = EnvironmentToolset(environment=environment)
            tools = {type(each).__name__: each for each in await toolset.get_tools()}

            async def call(kind: str, **args: Any) -> Any:
                return await tools[kind].run_async(args=args, tool_context=None)

            change = {"old_string": "two", "new_string": "TWO"}
            assert (await call("EditFileTool", path="old.txt", **change))["status"] == "ok"
            assert (await call("EditFileTool", path="old.txt", **change))["status"] == "error"
            assert (await call("WriteFileTool", path="b.txt", content="b\n"))["status"] == "ok"
            assert "TWO" in (await call("ReadFileTool", path="old.txt"))["content"]
            said = await call("ExecuteTool", command="cat old.txt b.txt")
            assert said == {"status": "ok", "stdout": "one\nTWO\nb\n"}
            sandbox = environment._keeper.take()[0]
            await toolset.close()
            assert sandbox.status == "stopped"

        asyncio.run(use())


def _parts(event: Any) -> list[Any]:
    return event.content.parts or [] if event.content else []


class TestOpenAiAgents:
    """OpenAI's Agents SDK: its shell tool and its patches."""

    @pytest.fixture
    def box(self) -> Any:
        from cellwall.integrations.openai_agents import CellwallBox

        with CellwallBox(files={"old.txt": "one\ntwo\n"}) as made:
            yield made

    def shell(self, box: Any, *commands: str, timeout_ms: int | None = None) -> Any:
        from agents.tool import ShellActionRequest, ShellCallData, ShellCommandRequest

        action = ShellActionRequest(list(commands), timeout_ms)
        request = ShellCommandRequest(None, ShellCallData("c", action))
        return asyncio.run(box.shell(request)).output

    def test_commands_follow_each_other(self, box: Any) -> None:
        first, second = self.shell(box, "echo 1 > f; echo err >&2; exit 3", "cat f")
        assert (first.stderr, first.exit_code, first.status) == ("err\n", 3, "completed")
        assert second.stdout == "1\n"

    def test_a_late_command_is_the_last(self, box: Any) -> None:
        (only,) = self.shell(box, "echo begun; sleep 60", "echo never", timeout_ms=1000)
        assert (only.status, only.stdout) == ("timeout", "begun\n")

    def test_patches_change_files_inside(self, box: Any) -> None:
        from agents.editor import ApplyPatchEditor, ApplyPatchOperation

        assert isinstance(box.editor, ApplyPatchEditor)

        def done(kind: str, path: str, diff: str | None = None, **more: Any) -> str:
            operation = ApplyPatchOperation(kind, path, diff, **more)
            status: str = asyncio.run(getattr(box.editor, kind)(operation)).status
            return status

        assert done("create_file", "new.txt", "+hello\n") == "completed"
        assert done("create_file", "new.txt", "+again\n") == "failed"
        change = "@@\n one\n-two\n+TWO\n"
        assert done("update_file", "old.txt", change, move_to="moved.txt") == "completed"
        assert done("update_file", "moved.txt", change) == "failed"  # the control
        assert self.shell(box, "cat moved.txt; ls")[0].stdout.split() == [
            "one",
            "TWO",
            "moved.txt",
            "new.txt",
        ]
        assert done("delete_file", "new.txt") == "completed"
        assert done("delete_file", "new.txt") == "failed"
        assert done("create_file", "/etc/x", "+x\n") == "failed"


@pytest.mark.parametrize(
    ("module", "name", "close"),
    [
        ("dspy", "CellwallInterpreter", "shutdown"),
        ("mini_swe_agent", "CellwallEnvironment", "close"),
        ("strands", "CellwallSandbox", "close"),
        ("openai_agents", "CellwallBox", "close"),
    ],
)
@pytest.mark.parametrize("is_given", [False, True])
def test_close_destroys_what_the_adapter_made(
    module: str, name: str, close: str, is_given: bool
) -> None:
    adapter = getattr(importlib.import_module(f"cellwall.integrations.{module}"), name)
    with cellwall.Sandbox("python") as given:
        made = adapter(sandbox=given if is_given else None)
        sandbox = made._keeper.take()[0]
        assert sandbox.run("6 * 7").text == "42"
        getattr(made, close)()
        assert (sandbox.status == "stopped") is not is_given
        assert given.run("6 * 7").text == "42"  # the control
