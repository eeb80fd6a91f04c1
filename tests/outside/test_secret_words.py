"""`--secret` of the command line: of `run`, of a session, and of tools for an MCP client."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from kit import command_line
from kit.outside.secrets import ASK, VALUE, Mirror
from kit.outside.world import LISTED, World

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def mirror(outside: World) -> Iterator[Mirror]:
    """A server that repeats what it was asked, as web.test."""
    with Mirror(outside.tls) as made:
        yield made


@pytest.fixture
def told(outside: World, tmp_path: Path) -> dict[str, str]:
    """Variables of a command whose outside is this world's, with the value in one of them."""
    authority = tmp_path / "authority.pem"
    authority.write_text(outside.authority, encoding="ascii")
    return {
        "CELLWALL_NETWORK_ADDRESSES": ",".join(LISTED),
        "CELLWALL_NAME_SERVERS": outside.names.address,
        "CELLWALL_NETWORK_AUTHORITIES": str(authority),
        "MY_KEY": VALUE,
    }


def secret_for(mirror: Mirror) -> list[str]:
    return ["--secret", f"API_KEY=env:MY_KEY@web.test:{mirror.port}"]


def asking(mirror: Mirror, path: str) -> str:
    return f"{ASK}\nprint(ask('https://web.test:{mirror.port}/{path}', {{'X-Key': KEY}}))"


def test_run_gives_a_secret(mirror: Mirror, told: dict[str, str]) -> None:
    code = asking(mirror, "run")
    done = command_line.start("run", "--json", *secret_for(mirror), "-c", code, **told)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stdout"].startswith("200")
    assert mirror.requests[-1][2]["X-Key"] == VALUE
    assert VALUE not in done.stdout + done.stderr


def test_a_session_gives_a_secret(mirror: Mirror, told: dict[str, str]) -> None:
    typed = f"exec({asking(mirror, 'shell')!r})\n"
    done = command_line.start("shell", *secret_for(mirror), stdin=typed, **told)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("200")
    assert mirror.requests[-1][1:][0] == "/shell"
    assert mirror.requests[-1][2]["X-Key"] == VALUE
    assert VALUE not in done.stdout + done.stderr
    # The control: without the word neither the variable nor the way is there.
    done = command_line.start("shell", stdin=typed, **told)
    assert "KeyError: 'API_KEY'" in done.stderr


def test_tools_of_a_client_give_a_secret(mirror: Mirror, told: dict[str, str]) -> None:
    words = ["-m", "cellwall.apps.cli.main", "mcp", *secret_for(mirror)]
    asked = StdioServerParameters(command=sys.executable, args=words, env={**os.environ, **told})

    async def scenario() -> tuple[str, list[str]]:
        async with stdio_client(asked) as (reads, writes), ClientSession(reads, writes) as session:
            await session.initialize()
            (run_code,) = (
                each for each in (await session.list_tools()).tools if each.name == "run_code"
            )
            found = []
            for path in ("program", "session"):
                given = {"code": asking(mirror, path)}
                if path == "session":
                    made = await session.call_tool("create_sandbox", {})
                    given["sandbox_id"] = made.structured_content["sandbox_id"]
                tool = "execute" if path == "session" else "run_code"
                found.append(str((await session.call_tool(tool, given)).content))
            return str(run_code.description), found

    said, found = asyncio.run(scenario())
    assert f"API_KEY (for web.test:{mirror.port})" in said
    assert [text.count("200 ") for text in found] == [1, 1], found
    assert {each[1] for each in mirror.requests[-2:]} == {"/program", "/session"}
    assert {each[2]["X-Key"] for each in mirror.requests[-2:]} == {VALUE}
    assert VALUE not in str(found) + said


def test_a_secret_without_a_way_to_its_host_ends_the_command(told: dict[str, str]) -> None:
    word = ["--network", "packages", "--secret", "API_KEY=env:MY_KEY@web.test"]
    for command in ("mcp", "shell"):
        done = command_line.start(command, *word, **told)
        assert done.returncode != 0, command
        assert "web.test" in done.stderr
        assert VALUE not in done.stdout + done.stderr
