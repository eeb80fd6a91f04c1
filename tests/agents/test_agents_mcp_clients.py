"""The page of frameworks that speak MCP: each block, with the framework's own client.

The frameworks are in two environments of their own, because two of them need another major of the
protocol's SDK than the rest. Each is a client of a real `cellwall mcp` and of a real server.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cellwall.apps.mcp.tools.arguments import BY_TOOL
from cellwall.engine.templates.store import state_dir
from kit.agents.other_environment import python_of
from kit.places import ROOT
from kit.server.mcp_doors import COMMAND
from kit.servers import ALICE

if TYPE_CHECKING:
    from kit.servers import Server

DRIVER = Path(__file__).parent / "suites" / "mcp_clients.py"
PAGE = (ROOT / "docs" / "agents" / "mcp-frameworks.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- mcp: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
GROUPS = {
    "agent_framework": "suite-mcp-clients",
    "claude_agent_sdk": "suite-mcp-clients",
    "crewai": "suite-mcp-1-clients",
    "haystack": "suite-mcp-clients",
    "pydantic_ai": "suite-mcp-clients",
    "semantic_kernel": "suite-mcp-1-clients",
}
LISTS_ONLY = {"claude_agent_sdk"}
"""Whose client calls a tool only when a model has asked for it."""
SILENT_WHEN_REFUSED = {"semantic_kernel"}
"""Whose connection to a server that refuses it never returns."""
pytestmark = [
    pytest.mark.slow,  # a gigabyte of packages: `make versions`
    pytest.mark.timeout(580),  # two hundred packages are installed at first
]


def _environ(folder: Path, server: Server) -> dict[str, str]:
    """Return what a client runs with; the command it finds keeps its templates where ours does.

    Clients hand the command next to nothing of their environment.
    """
    command = folder / "bin" / "cellwall"
    command.parent.mkdir()
    state = f"CELLWALL_STATE_DIR={state_dir()}"
    command.write_text(f'#!/bin/sh\nexec env "{state}" {COMMAND} "$@"\n')
    command.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    quiet = {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    quiet |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "HAYSTACK_TELEMETRY_ENABLED": "0"}
    return {
        **os.environ,
        **quiet,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "NO_PROXY": "127.0.0.1,localhost",
        "CELLWALL_URL": server.address,
        "CELLWALL_API_KEY": ALICE,
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_API_KEY": "none",
    }


def test_every_block_is_of_a_framework_that_is_run() -> None:
    assert BLOCKS.keys() == GROUPS.keys()
    assert PAGE.count("```python") == len(BLOCKS)


@pytest.mark.parametrize("name", GROUPS)
def test_the_block_finds_and_calls_our_tools_both_ways(
    name: str, server: Server, tmp_path: Path
) -> None:
    block, written = tmp_path / "block.py", tmp_path / "answers.json"
    block.write_text(BLOCKS[name], encoding="utf-8")
    ways = ["local", "server", "refused"]
    if name in SILENT_WHEN_REFUSED:
        ways.remove("refused")
    done = subprocess.run(
        [python_of(GROUPS[name]), DRIVER, name, block, written, *ways],
        cwd=tmp_path,
        env=_environ(tmp_path, server),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(written.read_text(encoding="utf-8"))
    assert list(answers) == ways
    said = "connected" if name in LISTS_ONLY else "42"
    for way in ("local", "server"):
        assert answers[way][0] == sorted(BY_TOOL), way
        assert said in answers[way][1], way
    if "refused" in ways:  # the control: a server that takes any key
        assert answers["refused"][0] == []
        assert said not in answers["refused"][1]
