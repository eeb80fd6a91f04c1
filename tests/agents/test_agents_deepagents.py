"""A sandbox backend in the hands of Deep Agents: a whole agent, its errors, its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

import cellwall
from cellwall.integrations.deepagents import CellwallBackend
from kit.agents.counting_run import left_open
from kit.servers import ALICE, Server

pytestmark = pytest.mark.timeout(240)  # frameworks take seconds of CPU to import


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = left_open()
    yield
    assert left_open() == before


@pytest.fixture
def backend() -> Iterator[CellwallBackend]:
    with CellwallBackend() as made:
        yield made


class Scripted(GenericFakeChatModel):
    """Says what it was told to, whatever it is asked."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def tools_said(backend: CellwallBackend, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """Return what an agent's model was told that made these calls."""
    said = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": str(number)}])
        for number, (name, args) in enumerate(calls)
    ]
    model = Scripted(messages=iter([*said, AIMessage("done")]))
    agent = create_deep_agent(model, backend=backend.for_agent())
    state: Any = asyncio.run(agent.ainvoke({"messages": [HumanMessage("go")]}))
    return [str(each.content) for each in state["messages"] if isinstance(each, ToolMessage)]


def test_agent_works_with_files_and_commands(backend: CellwallBackend) -> None:
    path = "/home/user/notes/a.txt"
    said = tools_said(
        backend,
        ("write_file", {"file_path": path, "content": "one\ntwo\n"}),
        ("edit_file", {"file_path": path, "old_string": "two", "new_string": "drei"}),
        ("read_file", {"file_path": path}),
        ("grep", {"pattern": "drei", "path": "/home/user"}),
        ("glob", {"pattern": "**/*.txt", "path": "/home/user"}),
        ("execute", {"command": "wc -l notes/a.txt; echo no >&2; exit 4"}),
    )
    assert "drei" in said[2]
    assert path in said[3]
    assert "notes/a.txt" in said[4]
    assert said[5].startswith("2 notes/a.txt\nno\n")
    assert "exit code 4" in said[5]


def test_large_output_stays_inside(backend: CellwallBackend) -> None:
    said = tools_said(backend, ("execute", {"command": "seq 100000; ls -R ~/.deepagents >&2"}))
    assert len(said[0]) < 20_000
    kept = backend.execute("find ~/.deepagents -type f | xargs cat | wc -l").output
    assert int(kept) >= 100_000


def test_output_is_in_order_and_ends_have_statuses(backend: CellwallBackend) -> None:
    done = backend.execute("for n in 1 2 3; do echo $n; echo -$n >&2; done; exit 7")
    assert (done.output, done.exit_code, done.truncated) == ("1\n-1\n2\n-2\n3\n-3\n", 7, False)
    late = backend.execute("echo begun; sleep 60", timeout=1)
    assert late.exit_code == 124
    assert late.output.startswith("begun\n\n[wall_time: ")
    assert backend.execute("kill -9 $$").exit_code == 137
    long = backend.execute("head -c 3000000 /dev/zero | tr '\\0' x")
    assert (long.exit_code, long.truncated) == (0, True)
    assert "NUL" in backend.execute("echo \0").output


def test_file_errors_are_words_of_theirs(backend: CellwallBackend) -> None:
    files = [("/home/user/d/a", b"\0\xff"), ("/proc/x", b""), ("a", b""), ("/home/user/d", b"")]
    expected = [None, "permission_denied", "invalid_path", "is_directory"]
    assert [each.error for each in backend.upload_files(files)][2] == "invalid_path"
    assert [each.error for each in asyncio.run(backend.aupload_files(files))][::3] == expected[::3]
    paths = ["/home/user/d/a", "/home/user/none", "/home/user/d", "a"]
    found = backend.download_files(paths)
    assert [each.content for each in found] == [b"\0\xff", None, None, None]
    words = [None, "file_not_found", "is_directory", "invalid_path"]
    assert [each.error for each in found] == words
    assert [each.error for each in asyncio.run(backend.adownload_files(paths))] == words


def test_a_sandbox_that_died_is_told_of_once_and_replaced(backend: CellwallBackend) -> None:
    backend.execute("echo here > kept.txt")
    backend.sandbox.close()
    told = backend.execute("cat kept.txt")
    assert told.exit_code == 125
    assert "files are gone" in told.output
    again = backend.execute("cat kept.txt")
    assert again.exit_code == 1
    assert "No such file" in again.output


def wait_until_there(backend: CellwallBackend, path: str) -> None:
    while not backend.sandbox.files.exists(path):
        time.sleep(0.02)


async def cancelled(backend: CellwallBackend) -> float:
    running = asyncio.ensure_future(backend.aexecute("touch begun; sleep 60"))
    await asyncio.to_thread(wait_until_there, backend, "begun")
    began_s = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return time.monotonic() - began_s


def test_cancelling_ends_the_command(backend: CellwallBackend) -> None:
    assert asyncio.run(cancelled(backend)) < 20
    assert "sleep" not in backend.execute("cat /proc/[0-9]*/comm").output


def test_sandboxes_of_a_server_and_of_the_callers_own(server: Server) -> None:
    with cellwall.connect(server.address, ALICE) as client:
        with CellwallBackend(client=client, timeout=20) as backend:
            assert backend.execute("echo $HOME").output == "/home/user\n"
            assert asyncio.run(backend.aexecute("exit 3")).exit_code == 3
            limits = backend.sandbox.limits
            assert limits.wall_s > cellwall.Limits().wall_s
        with client.Sandbox() as mine:
            with CellwallBackend(sandbox=mine) as backend:
                backend.upload_files([("/home/user/x", b"1")])
            assert mine.files.read("x") == "1"


def test_nothing_starts_before_it_is_needed() -> None:
    with CellwallBackend(template="no-such-template") as backend:
        assert backend.id == backend.id
        assert backend.for_agent().artifacts_root == "/home/user/.deepagents"
        with pytest.raises(cellwall.NotFound):
            backend.execute("true")
