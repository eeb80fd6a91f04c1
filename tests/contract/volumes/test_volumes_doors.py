"""Volumes at the doors that an operator opens for a model: MCP, a session, tools, a provider."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

import cellwall
from cellwall.integrations.code_tool import CodeTool
from kit import command_line

pytestmark = pytest.mark.root
NAME = f"test-doors-{os.getpid()}"
WRITE = "open('/data/x', 'w').write('kept'); print('done')"
READ = "print(open('/data/x').read())"
Call = tuple[str, dict[str, object]]
BOTH: list[Call] = [("run_code", {"code": WRITE}), ("run_code", {"code": READ})]


@pytest.fixture
def volumes() -> Iterator[cellwall.Volumes]:
    made = cellwall.Volumes()
    made.create(NAME, size_mb=8)
    yield made
    made.remove(NAME)


async def _called(words: list[str], calls: list[Call]) -> list[str]:
    words = ["-m", "cellwall.apps.cli.main", "mcp", *words]
    asked = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    async with stdio_client(asked) as (reads, writes), ClientSession(reads, writes) as session:
        await session.initialize()
        tools = {each.name: each for each in (await session.list_tools()).tools}
        said = [str(tools["run_code"].description)]
        for tool, arguments in calls:
            said.append(str((await session.call_tool(tool, arguments)).content))
        return said


@pytest.mark.usefixtures("volumes")
def test_mcp_shows_the_operators_volumes_and_no_others() -> None:
    described, done, kept = asyncio.run(_called(["--volume", f"{NAME}:/data"], BOTH))
    assert "Files in /data outlive the sandbox." in described
    assert "done" in done
    assert "kept" in kept
    others: list[Call] = [("run_code", {"code": READ, "volumes": {NAME: "/data"}})]
    described, refused = asyncio.run(_called([], others))
    assert "outlive" not in described
    assert "kept" not in refused
    read_only = ["--volume", f"{NAME}:/data:ro"]
    _, refused, kept = asyncio.run(_called(read_only, BOTH))
    assert "Read-only file system" in refused
    assert "kept" in kept


@pytest.mark.parametrize(
    "word", ["absent:/data", f"{NAME}:/etc", "no path"], ids=["absent", "system", "no-path"]
)
@pytest.mark.usefixtures("volumes")
def test_what_is_no_volume_ends_mcp_before_a_client_waits(word: str) -> None:
    done = command_line.start("mcp", "--volume", word)
    assert done.returncode != 0
    assert "volume" in done.stderr


@pytest.mark.usefixtures("volumes")
def test_a_session_has_volumes() -> None:
    for code, said in ((WRITE, "done"), (READ, "kept")):
        done = command_line.start("shell", "--volume", f"{NAME}:/data", stdin=code + "\n")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout


@pytest.mark.usefixtures("volumes")
def test_code_tools_have_volumes() -> None:
    for code, said in ((WRITE, "done"), (READ, "kept")):
        with CodeTool(volumes={NAME: "/data"}) as tool:
            assert said in tool.call({"code": code}).text


@pytest.mark.usefixtures("volumes")
def test_samples_of_inspect_have_volumes(tmp_path: Path) -> None:
    inspect_ai = pytest.importorskip("cellwall.integrations.inspect_ai")
    provider, config = inspect_ai.CellwallSandboxEnvironment, inspect_ai.CellwallSandboxConfig

    async def sample(volume: str, code: str) -> str:
        made = await provider.sample_init("t", config(volumes=(volume,)), {})
        try:
            return str((await made["default"].exec(["python3", "-c", code])).stdout)
        finally:
            await provider.sample_cleanup("t", None, made, interrupted=False)

    assert asyncio.run(sample(f"{NAME}:/data", WRITE)) == "done\n"
    assert asyncio.run(sample(f"{NAME}:/data:ro", READ)) == "kept\n"
