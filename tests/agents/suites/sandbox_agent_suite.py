"""Sandboxes of OpenAI's `SandboxAgent`, run with the SDK itself and a scripted model.

Run by `test_agents_kits` in an environment of its own, which has the kits' packages.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ConfigurationError,
    ExecNonZeroError,
    ExecTimeoutError,
    InvalidManifestPathError,
    SandboxError,
    WorkspaceReadNotFoundError,
)
from agents.usage import Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from agents import RunConfig, Runner
from cellwall.integrations.openai_agents import CellwallSandboxClient, CellwallSandboxClientOptions

PAUSED = CellwallSandboxClientOptions(pause_on_exit=True)


def use(work: Callable[[CellwallSandboxClient], Coroutine[Any, Any, None]]) -> None:
    client = CellwallSandboxClient()
    try:
        asyncio.run(work(client))
    finally:
        client.close()


def sandbox_of(session: Any) -> Any:
    return session._inner._sandbox


def test_commands_and_files_share_a_workspace() -> None:
    async def work(client: CellwallSandboxClient) -> None:
        async with await client.create() as session:
            root = session.state.manifest.root
            done = await session.exec("pwd; echo err >&2; exit 3")
            assert (done.stdout.decode(), done.stderr, done.exit_code) == (f"{root}\n", b"err\n", 3)
            await session.write(Path("sub/a.bin"), io.BytesIO(b"\x00\xff"))
            assert (await session.read(Path("sub/a.bin"))).read() == b"\x00\xff"
            (entry,) = [each for each in await session.ls("sub") if each.path.endswith("a.bin")]
            assert entry.size == 2
            await session.rm("sub", recursive=True)
            with pytest.raises(WorkspaceReadNotFoundError):
                await session.read(Path("sub/a.bin"))
            sandbox = sandbox_of(session)
        assert sandbox.status == "stopped"

    use(work)


def test_what_leads_out_of_the_workspace_is_refused() -> None:
    async def work(client: CellwallSandboxClient) -> None:
        async with await client.create() as session:
            await session.exec("ln -s /etc/passwd link; echo x > own; ln -s own inner")
            for path in (Path("/etc/passwd"), Path("../x"), Path("link")):
                with pytest.raises(InvalidManifestPathError):
                    await session.read(path)
            assert (await session.read(Path("inner"))).read() == b"x\n"  # the control

    use(work)


def test_a_late_command_and_another_user_are_errors() -> None:
    async def work(client: CellwallSandboxClient) -> None:
        async with await client.create() as session:
            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 60", timeout=0.5)
            with pytest.raises(ConfigurationError, match="one user"):
                await session.exec("id", user="root")
            with pytest.raises(ConfigurationError, match="one user"):
                await session.write(Path("a"), io.BytesIO(b""), user="root")
            assert (await session.exec("echo on")).stdout == b"on\n"  # the control

    use(work)


def test_a_manifest_is_there_before_the_first_command() -> None:
    manifest = Manifest(
        entries={"data/notes.txt": File(content=b"hello")},
        environment={"value": {"GREETING": "good day"}},
    )

    async def work(client: CellwallSandboxClient) -> None:
        async with await client.create(manifest=manifest) as session:
            done = await session.exec("cat data/notes.txt; echo; echo $GREETING")
            assert done.stdout == b"hello\ngood day\n"

    use(work)


def test_a_workspace_goes_on_in_another_sandbox(tmp_path: Path) -> None:
    async def work(client: CellwallSandboxClient) -> None:
        session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
        await session.start()
        made = "mkdir -p d; echo kept > d/f; ln -s d/f link; chmod 700 d/f; mkfifo pipe"
        assert (await session.exec(made)).exit_code == 0
        first = session.state.sandbox_id
        await session.aclose()
        await client.delete(session)
        kept = client.serialize_session_state(session.state)
        again = await CellwallSandboxClient().resume(client.deserialize_session_state(dict(kept)))
        async with again:
            assert again.state.sandbox_id != first
            assert not (await again.exec("ls /tmp/.cellwall*")).ok()
            done = await again.exec("cat link; stat -c %a d/f; ls")
            assert done.stdout == b"kept\n700\nd\nlink\n"

    use(work)


def test_a_paused_session_goes_on_where_it_was() -> None:
    async def work(client: CellwallSandboxClient) -> None:
        session = await client.create(options=PAUSED)
        await session.start()
        assert (await session.exec("nohup sleep 600 >/dev/null 2>&1 & echo $! > pid")).ok()
        sandbox = sandbox_of(session)
        await session.aclose()
        assert sandbox.status == "paused"
        again = await client.resume(session.state)
        await again.start()
        assert sandbox_of(again) is sandbox
        assert (await again.exec("cat pid")).ok()
        await again.aclose()
        assert sandbox.status == "paused"  # the control: only what deletes it ends it
        await client.delete(again)
        await client.delete(again)
        assert sandbox.status == "stopped"

    use(work)


def test_an_ended_sandbox_is_an_error_of_theirs() -> None:
    async def work(client: CellwallSandboxClient) -> None:
        session = await client.create()
        await session.start()
        assert await session.running()
        sandbox_of(session).close()
        assert not await session.running()
        with pytest.raises(SandboxError):
            await session.exec("true")
        with pytest.raises((SandboxError, ExecNonZeroError)):
            await session.read(Path("x"))
        await session.shutdown()

    use(work)


class Scripted(Model):
    """A model that makes one call of the shell, and says what it got."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.tools: list[str] = []
        self.got = ""

    async def get_response(self, *arguments: Any, **named: Any) -> ModelResponse:
        given = dict(zip(("instructions", "input", "settings", "tools"), arguments, strict=False))
        given |= named
        self.tools = [tool.name for tool in given["tools"]]
        items = [each for each in given["input"] if isinstance(each, dict)]
        outputs = [each["output"] for each in items if each.get("type") == "function_call_output"]
        if not outputs:
            call = ResponseFunctionToolCall(
                arguments=f'{{"cmd": "{self.command}"}}',
                call_id="c1",
                name="exec_command",
                type="function_call",
            )
            return ModelResponse([call], Usage(), None)
        self.got = str(outputs[-1])
        text = ResponseOutputText(annotations=[], text="done", type="output_text")
        message = ResponseOutputMessage(
            id="m", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse([message], Usage(), None)

    def stream_response(self, *_arguments: Any, **_named: Any) -> Any:
        raise AssertionError("the run asks for whole responses")


def test_an_agent_runs_in_a_sandbox_that_ends_with_it() -> None:
    async def work(client: CellwallSandboxClient) -> None:
        model = Scripted("expr 6 \\\\* 7; id -un")
        agent = SandboxAgent(name="worker", instructions="Work.", model=model)
        config = RunConfig(sandbox=SandboxRunConfig(client=client), tracing_disabled=True)
        result = await Runner.run(agent, "go", run_config=config)
        assert result.final_output == "done"
        assert "exec_command" in model.tools
        assert "42" in model.got, model.got
        assert not client._sandboxes.ids()

    use(work)
