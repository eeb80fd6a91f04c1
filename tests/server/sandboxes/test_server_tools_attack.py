"""Hostile callers of a client's tools through a server: its memory, its disk, its other tenants.

The witness is the server's process, read from /proc, and the file of its store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellwall
from cellwall import Event, Tool, ToolBox
from kit.hostile_calls import big, flood, hang
from kit.servers import ALICE, BOB, Server, running

_MAY_GROW_BYTES = 16 * 1024 * 1024
_PLANTED = "planted-argument-5a4b3c2d1e0f"


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    with running() as made:
        yield made


def _grown(server: Server, code: str, box: ToolBox) -> tuple[int, list[Event]]:
    events: list[Event] = []
    with cellwall.connect(server.address, ALICE) as client:
        client.run("tools.big('x')", tools=ToolBox([hang, big]))  # what it imports is imported
        before = server.rss_bytes()
        peak = before

        def watch(event: Event) -> None:
            nonlocal peak
            events.append(event)
            peak = max(peak, server.rss_bytes())

        execution = client.run(code, tools=box, timeout=50, on_event=watch)
        assert "made" in execution.stdout, execution
    with cellwall.connect(server.address, BOB) as other:
        assert other.run("print(1)").stdout == "1\n"
    return peak - before, events


@pytest.mark.parametrize("tool", ["hang", "big"])
def test_flood_of_calls_leaves_the_server_flat(own: Server, tool: str) -> None:
    grown, events = _grown(own, flood(tool, 5_000, 10_000), ToolBox([hang, big]))
    assert grown <= _MAY_GROW_BYTES
    assert 8 <= len([event for event in events if event.kind == "tool_call"]) <= 1000


def test_control_large_results_at_once_are_seen_in_memory(own: Server) -> None:
    async def huge(x: str) -> str:
        return "y" * 1_000_000

    box = ToolBox({"huge": Tool(huge, max_bytes=1 << 20), "big": big}, at_once=16)
    grown, _ = _grown(own, flood("huge", 200, 1_000_000), box)
    assert grown > _MAY_GROW_BYTES // 4


def test_arguments_and_results_are_written_nowhere(own: Server) -> None:
    def echo(text: str) -> str:
        return text.upper()

    with cellwall.connect(own.address, ALICE) as client:
        # Put together inside, so that the code of the request does not have it either.
        code = f"text = '-'.join({_PLANTED.split('-')!r})\nprint(len(tools.echo(text)), 'marker')"
        assert client.run(code, tools=[echo]).stdout == f"{len(_PLANTED)} marker\n"
    written = b"".join(
        Path(folder, name).read_bytes()
        for folder, _, names in os.walk(own.log.parent)
        for name in names
        if name.startswith("cellwall.db") or name.endswith((".log", ".db", ".db-wal"))
    )
    assert b"tool.call" in written  # the control: this is where things are written
    for text in (_PLANTED, _PLANTED.upper()):
        assert text.encode() not in written
