"""The configuration that the pages show, used as a new user would: asked for a plot."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cellwall.apps.mcp.tools.arguments import BY_TOOL
from conftest import Require
from kit.places import ROOT
from kit.server.mcp_doors import StdioDoor, images_of, play

if TYPE_CHECKING:
    from mcp.client.client import Client

PAGES = ("README.md", "docs/agents/mcp.md")
SINE = (
    "import numpy, matplotlib.pyplot as plt\nx = numpy.linspace(0, 10)\nplt.plot(x, numpy.sin(x))"
)

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("page", PAGES)
def test_the_block_of_the_page_gives_a_plot(page: str, require: Require) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- runs: mcp -->\n```json\n(.*?)```", text, re.DOTALL)
    asked = json.loads(block)["mcpServers"]["cellwall"]
    beside = Path(sys.executable).parent  # where `pip install` put the command
    require("cellwall on PATH", (beside / asked["command"]).exists(), "not installed")
    environ = {"PATH": f"{beside}:{os.environ['PATH']}"}
    command = str(beside / asked["command"])  # the client looks in its own PATH

    async def scenario(client: Client) -> None:
        result = await client.call_tool("run_code", {"code": SINE})
        (image,) = images_of(result)
        assert base64.b64decode(image.data).startswith(b"\x89PNG")

    play(StdioDoor(command=command, args=tuple(asked["args"]), environ=environ), scenario)


def test_the_page_has_every_tool_and_its_arguments() -> None:
    page = (ROOT / "docs" / "agents" / "mcp.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert set(rows) == set(BY_TOOL)
    for name in BY_TOOL["run_code"].model_fields:
        assert f"`{name}`" in rows["run_code"] or name == "code"
