"""Drive the MCP client of one framework, as its page's block has set it up, without a model.

`mcp_clients.py NAME BLOCK ANSWERS WAY...`: the block is run once for each way in, and its `local`
or `server` connected; `refused` is the server with a wrong key. The file ANSWERS gets, as JSON, the
tools that were found each way and what one of them said. Run by `test_agents_mcp_clients` in an
environment that has the framework.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

CALL = {"code": "print(6 * 7)", "template": "python"}
Found = tuple[list[str], str]


async def pydantic_ai(block: dict[str, Any], way: str) -> Found:
    async with block[way] as toolset:
        names = [each.name for each in await toolset.list_tools()]
        return names, str(await toolset.direct_call_tool("run_code", CALL))


async def agent_framework(block: dict[str, Any], way: str) -> Found:
    async with block[way] as tool:
        names = [each.name for each in tool.functions]
        return names, str([str(each) for each in await tool.call_tool("run_code", **CALL)])


async def semantic_kernel(block: dict[str, Any], way: str) -> Found:
    from semantic_kernel import Kernel

    async with block[way] as plugin:
        kernel = Kernel()
        names = list(kernel.add_plugin(plugin).functions)
        said = await kernel.invoke(plugin_name="cellwall", function_name="run_code", **CALL)
        return names, str(said)


def haystack(block: dict[str, Any], way: str) -> Found:
    toolset = block[way]
    toolset.warm_up()
    try:
        tools = {each.name: each for each in toolset}
        return list(tools), str(tools["run_code"].invoke(**CALL))
    finally:
        toolset.close()


async def crewai(block: dict[str, Any], way: str) -> Found:
    """Called on an event loop, because of what its page says of Python 3.11."""
    from crewai import Agent

    agent = Agent(role="r", goal="g", backstory="b", mcps=[block[way]])
    tools = {each.name: each for each in agent.get_mcp_tools(agent.mcps)}
    (run_code,) = [name for name in tools if name.endswith("run_code")]
    prefix = run_code.removesuffix("run_code")
    names = [each.removeprefix(prefix) for each in tools]
    return names, str(tools[run_code].run(**CALL))


async def claude_agent_sdk(block: dict[str, Any], way: str) -> Found:
    """Only lists: what its client calls, a model has asked for."""
    from claude_agent_sdk import ClaudeSDKClient

    options = block["options"]
    options.mcp_servers = {"cellwall": block[way]}
    options.strict_mcp_config = True
    async with ClaudeSDKClient(options) as client:
        while True:
            (found,) = (await client.get_mcp_status())["mcpServers"]
            if found["status"] != "pending":
                return [each["name"] for each in found.get("tools", [])], found["status"]
            await asyncio.sleep(0.05)


def came_of(name: str, source: str, way: str) -> tuple[list[str], str]:
    """Return the tools that were found that way and the answer of one, or why there is none."""
    block: dict[str, Any] = {"__name__": "__main__"}
    exec(source, block)
    used = globals()[name](block, way)
    names, said = asyncio.run(used) if asyncio.iscoroutine(used) else used
    return sorted(names), said


def main() -> None:
    name, block, answers, *ways = sys.argv[1:]
    source = Path(block).read_text(encoding="utf-8")
    came: dict[str, Any] = {}
    for way in ways:
        if way != "refused":
            came[way] = came_of(name, source, way)
            continue
        os.environ["CELLWALL_API_KEY"] = "not-a-key"
        try:
            came[way] = came_of(name, source, "server")
        except Exception as error:  # noqa: BLE001 - each client has kinds of its own
            came[way] = ([], f"{type(error).__name__}: {error}")
    Path(answers).write_text(json.dumps(came), encoding="utf-8")


if __name__ == "__main__":
    main()
