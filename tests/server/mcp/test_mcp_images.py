"""MCP on an image that the operator names: the tools say it, and the client cannot change it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from kit import command_line
from kit.images import archives
from kit.images.archives import config_of, layer

pytestmark = pytest.mark.root


def test_tools_run_on_the_operators_image(tmp_path: Path) -> None:
    root = layer(archives.python_root())
    path = archives.docker_archive(tmp_path / "task.tar", [root], config_of([root], User="app"))
    words = ["-m", "cellwall.apps.cli.main", "mcp", "--image", str(path), "--user", "root"]
    asked = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))

    async def scenario() -> None:
        async with stdio_client(asked) as (reads, writes), ClientSession(reads, writes) as session:
            await session.initialize()
            tools = {each.name: each for each in (await session.list_tools()).tools}
            assert f"container image {path}" in str(tools["run_code"].description)
            code: dict[str, Any] = {"code": "import os; print(os.getuid())"}
            assert "0" in str((await session.call_tool("run_code", code)).content)
            refused = await session.call_tool("run_code", {**code, "image": "/etc/passwd"})
            assert "passwd" not in str(refused.content) or "image" in str(refused.content)

    asyncio.run(scenario())


def test_what_is_no_image_ends_it_before_a_client_waits(tmp_path: Path) -> None:
    done = command_line.start("mcp", "--image", str(tmp_path / "none.tar"))
    assert done.returncode != 0
    assert "none.tar" in done.stderr
    assert command_line.start("mcp", "--user", "root").returncode != 0
