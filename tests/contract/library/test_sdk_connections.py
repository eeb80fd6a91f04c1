"""What the SDK does when connections break, keys are wrong and servers are gone.

A real server behind a proxy that cuts. The witness of what ran and how often is the sandbox
itself, or the server asked directly.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cellwall
from cellwall.client.connection.attempts import follow
from cellwall.client.connection.retry import DELAYS_S
from cellwall.client.connection.transport import Ask
from cellwall.surface.sync.terminals import SyncTerminal
from kit.server.cutting_proxy import CuttingProxy, Once

if TYPE_CHECKING:
    from cellwall.client.blocking import Client, RemoteSandbox
    from kit.servers import Server


@pytest.fixture(scope="module")
def direct(server: Server) -> Iterator[Client]:
    """Give a client without a proxy: the witness."""
    from kit.servers import ALICE

    with cellwall.connect(server.address, ALICE) as client:
        yield client


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    with CuttingProxy(server.port) as made:
        yield made


@pytest.fixture
def client(proxy: CuttingProxy) -> Iterator[Client]:
    from kit.servers import ALICE

    with cellwall.connect(proxy.address, ALICE) as made:
        yield made


@pytest.fixture(scope="module")
def shared(direct: Client) -> Iterator[RemoteSandbox]:
    with direct.Sandbox() as made:
        yield made


# -- nothing twice, nothing lost ---------------------------------------------------------------


def test_answer_that_was_lost_is_fetched_and_nothing_runs_twice(
    proxy: CuttingProxy, client: Client, shared: RemoteSandbox
) -> None:
    sandbox = client.attach(shared.id)
    proxy.should_cut = cut = Once(lambda data, is_answer: is_answer and b"execution_id" in data)
    execution = sandbox.run("count = globals().get('count', 0) + 1\ncount")
    assert cut.has_cut
    assert execution.text == "1"
    assert shared.run("count").text == "1"


def test_request_that_was_lost_is_sent_again(proxy: CuttingProxy, client: Client) -> None:
    proxy.should_cut = cut = Once(lambda data, is_answer: b"POST /execute" in data)
    assert client.run("print('once')").stdout == "once\n"
    assert cut.has_cut


def test_created_sandbox_is_not_created_twice(
    proxy: CuttingProxy, client: Client, direct: Client
) -> None:
    proxy.should_cut = cut = Once(lambda data, is_answer: is_answer and b"201 Created" in data)
    with client.Sandbox(metadata={"test": "twice"}) as made:
        assert cut.has_cut
        listed = direct.sandboxes(metadata={"test": "twice"})
        assert [each.id for each in listed] == [made.id]


def test_stream_continues_after_the_last_event(
    proxy: CuttingProxy, client: Client, shared: RemoteSandbox
) -> None:
    sandbox = client.attach(shared.id)
    code = "import time\nfor n in range(40):\n    print(n, flush=True)\n    time.sleep(0.02)"
    seen: list[Any] = []
    for event in sandbox.stream(code):
        seen.append(event)
        if event.seq in {5, 20}:
            proxy.cut()
    assert proxy.cuts >= 2
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert "".join(event.text or "" for event in seen) == "".join(f"{n}\n" for n in range(40))
    assert seen[-1].kind == "end"


def test_events_of_a_one_shot_survive_a_cut(proxy: CuttingProxy, client: Client) -> None:
    seen: list[Any] = []

    def on_event(event: Any) -> None:
        seen.append(event)
        if event.seq == 2:
            proxy.cut()

    code = "import time\nfor n in range(10):\n    print(n, flush=True)\n    time.sleep(0.05)"
    execution = client.run(code, on_event=on_event)
    assert proxy.cuts
    assert "".join(event.text or "" for event in seen) == execution.stdout
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))


def test_events_that_are_gone_are_a_gap(server: Server) -> None:
    """Positive control beside it: what is kept comes whole."""
    from kit.servers import ALICE, running

    async def events(address: str, path: str) -> list[Any]:
        async with await cellwall.aconnect(address, ALICE) as client:
            ask = Ask("GET", path, accept="application/x-ndjson")
            return [event async for event in follow(client._transport, lambda _: ask)]

    code = "for n in range(300):\n    print('x' * 1000, flush=True)"
    for spool_bytes, has_gap in ((1 << 20, False), (20_000, True)):
        with running(store="none", spool_bytes=spool_bytes) as made:
            with cellwall.connect(made.address, ALICE) as client:
                execution = client.run(code)
            path = f"/executions/{execution.id}/events"
            seen = asyncio.run(events(made.address, path))
        gaps = [event for event in seen if event.kind == "gap"]
        assert bool(gaps) == has_gap
        assert seen[-1].kind == "end"
        if gaps:
            lost = gaps[0].value
            assert lost["after"] == 0
            assert seen[1].seq == lost["next"] == lost["lost"] + 1
            assert gaps[0].seq == lost["lost"]


def test_command_is_found_again_by_another_client(
    client: Client, shared: RemoteSandbox, proxy: CuttingProxy
) -> None:
    command = client.attach(shared.id).commands.start("read word; echo got $word; exit 5")
    proxy.cut()
    client.close()
    found = shared.commands.get(command.id)
    assert found.is_running
    found.send_stdin("it\n")
    result = found.wait()
    assert (result.stdout, result.exit_code) == ("got it\n", 5)
    assert shared.commands.get(command.id).wait() == result  # also after its end


def test_file_goes_up_whole_although_the_connection_was_cut(
    proxy: CuttingProxy, client: Client, shared: RemoteSandbox, tmp_path: Path
) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "up").write_bytes(data)
    passed = 0

    def in_the_middle(piece: bytes, is_answer: bool) -> bool:
        nonlocal passed
        passed += 0 if is_answer else len(piece)
        return passed > 1 << 20

    sandbox = client.attach(shared.id)
    proxy.should_cut = cut = Once(in_the_middle)
    assert sandbox.files.upload(tmp_path / "up", "cut.bin") == len(data)
    assert cut.has_cut
    assert shared.files.read_bytes("cut.bin") == data


def test_upload_that_is_refused_is_told_why(direct: Client, tmp_path: Path) -> None:
    """Most of it has not been read when the server says no, and it is sent once."""
    sent: list[int] = []
    (tmp_path / "up").touch()
    os.truncate(tmp_path / "up", 40 << 20)
    with direct.Sandbox(limits={"disk_mb": 16}) as sandbox:
        with pytest.raises(cellwall.FileError, match="No space left"):
            sandbox.files.upload(
                tmp_path / "up", "b", on_progress=lambda done, _: sent.append(done)
            )
        assert sent == sorted(set(sent))
        direct.attach(sandbox.id).close()
        with pytest.raises(cellwall.SandboxUnavailable):
            sandbox.files.upload(tmp_path / "up", "b")


def test_what_may_not_be_repeated_is_not(
    proxy: CuttingProxy, client: Client, shared: RemoteSandbox
) -> None:
    shared.files.write("log", "")
    sandbox = client.attach(shared.id)
    proxy.should_cut = Once(lambda data, is_answer: is_answer and b'"size"' in data)
    with pytest.raises(cellwall.ServerUnreachable):
        sandbox.files.append("log", "x")
    assert shared.files.read("log") == "x"


def test_download_that_breaks_off_leaves_no_file(
    proxy: CuttingProxy, client: Client, shared: RemoteSandbox, tmp_path: Path
) -> None:
    shared.run("open('big', 'wb').write(bytes(8 << 20))")
    sandbox = client.attach(shared.id)
    passed = 0

    def late(piece: bytes, is_answer: bool) -> bool:
        nonlocal passed
        passed += len(piece) if is_answer else 0
        return passed > 4 << 20

    proxy.should_cut = Once(late)
    with pytest.raises(cellwall.ServerUnreachable):
        sandbox.files.download("big", tmp_path / "big")
    assert list(tmp_path.iterdir()) == []


def test_watch_whose_connection_is_lost_says_so(
    proxy: CuttingProxy, client: Client, shared: RemoteSandbox
) -> None:
    watch = client.attach(shared.id).files.watch()
    proxy.cut()
    with pytest.raises(cellwall.ServerUnreachable):
        next(watch)
    watch.close()


def test_terminal_whose_connection_is_lost_is_hung_up(
    proxy: CuttingProxy, client: Client, shared: RemoteSandbox
) -> None:
    terminal = client.attach(shared.id).commands.start(["sleep", "100"], pty=(24, 80))
    proxy.cut()
    assert b"".join(terminal) == b""
    assert terminal.wait().outcome.signal in {signal.SIGHUP, signal.SIGKILL}


def test_terminal_with_time_to_come_back_goes_on(
    proxy: CuttingProxy, client: Client, shared: RemoteSandbox
) -> None:
    """The same terminal object, after a cut, and then another client's."""
    counts = 'n=100; while :; do n=$((n+1)); echo "<$n>"; sleep 0.1; done'
    commands = client.attach(shared.id).commands
    terminal = commands.start(counts, pty=(24, 80), detach_s=60)
    read_from(terminal, 102)
    proxy.cut()
    last = read_from(terminal, 120)
    other = shared.commands.attach(terminal.id, (30, 90))
    read_from(other, last + 1)
    other.write("\x03")
    assert other.wait().outcome.signal == terminal.wait().outcome.signal == signal.SIGINT


def read_from(terminal: SyncTerminal, least: int) -> int:
    """Read until it has counted as far; the number."""
    found = b""
    while True:
        data = terminal.read()
        assert data, found
        found += data
        for word in re.findall(rb"<([0-9]+)>", found):
            if int(word) >= least:
                return int(word)


# -- leaving early -----------------------------------------------------------------------------


def wait_ended(direct: Client, sandbox: RemoteSandbox, name: str) -> None:
    """Return when a file that a loop inside keeps touching is no longer touched."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        before = sandbox.files.read(name)
        sandbox.commands.run(["sleep", "0.5"])
        if sandbox.files.read(name) == before:
            return
    raise AssertionError("it runs on")


TICKING = (
    "import time\nn = 0\n"
    "while True:\n    n += 1\n    open('tick', 'w').write(str(n))\n    time.sleep(0.05)"
)


def test_cancelled_call_ends_the_cell(server: Server, direct: Client) -> None:
    from kit.servers import ALICE

    async def main(sandbox_id: str) -> None:
        async with await cellwall.aconnect(server.address, ALICE) as client:
            sandbox = await client.attach(sandbox_id)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await sandbox.run(TICKING)

    with direct.Sandbox() as sandbox:
        sandbox.run("kept = 1")
        asyncio.run(main(sandbox.id))
        assert int(sandbox.files.read("tick")) > 1
        wait_ended(direct, sandbox, "tick")
        assert sandbox.run("kept").text == "1"


def test_interrupted_command_is_killed(direct: Client) -> None:
    with direct.Sandbox() as sandbox:
        seen = threading.Event()

        def on_stdout(text: str) -> None:
            seen.set()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sandbox.commands.run("echo up; sleep 100", on_stdout=on_stdout)
        assert seen.is_set()
        deadline = time.monotonic() + 20
        while sandbox.commands.list() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sandbox.commands.list() == []


def test_close_beside_a_run_ends_it_and_its_thread(server: Server, direct: Client) -> None:
    from kit.servers import ALICE

    def work() -> None:
        with pytest.raises(cellwall.Conflict, match="closed meanwhile"):
            client.attach(sandbox.id).run(TICKING)
        answered.append(True)

    answered: list[bool] = []
    client = cellwall.connect(server.address, ALICE)
    with direct.Sandbox() as sandbox:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not sandbox.files.exists("tick") and time.monotonic() < deadline:
            time.sleep(0.05)
        client.close()
        thread.join(10)
        assert answered
        wait_ended(direct, sandbox, "tick")


def test_program_that_ends_beside_a_run_exits(server: Server) -> None:
    from kit.servers import ALICE

    code = """if True:
        import cellwall, os, sys, threading
        begun = threading.Event()
        client = cellwall.connect(sys.argv[1], sys.argv[2])
        def work():
            client.run("print(1, flush=True); import time; time.sleep(100)",
                       on_event=lambda event: begun.set())
        threading.Thread(target=work).start()
        begun.wait()
    """
    command = [sys.executable, "-c", code, server.address, ALICE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    assert "Conflict" in done.stderr


def test_closed_client_says_so(server: Server) -> None:
    from kit.servers import ALICE

    async def main() -> None:
        client = await cellwall.aconnect(server.address, ALICE)
        await client.aclose()
        with pytest.raises(cellwall.UsageError, match="closed"):
            await client.arun("print(1)")

    asyncio.run(main())


def test_two_runs_of_one_context_queue(server: Server, direct: Client) -> None:
    from kit.servers import ALICE

    async def main(sandbox_id: str) -> None:
        async with await cellwall.aconnect(server.address, ALICE) as client:
            sandbox = await client.attach(sandbox_id)
            code = "order = globals().get('order', []) + [%d]"
            await asyncio.gather(*(sandbox.run(code % n) for n in range(6)))
            assert sorted((await sandbox.run("order")).text or "") == sorted(str(list(range(6))))

    with direct.Sandbox() as sandbox:
        asyncio.run(main(sandbox.id))


# -- the wrong server, the wrong key -----------------------------------------------------------


def test_wrong_key_is_said_at_once(server: Server) -> None:
    with pytest.raises(cellwall.AccessDenied) as refused:
        cellwall.connect(server.address, "nobodys-key-0123456789abcdef012345")
    assert refused.value.request_id
    assert "nobodys" not in str(refused.value)


def test_things_of_others_are_not_found(server: Server, shared: RemoteSandbox) -> None:
    from kit.servers import BOB

    with cellwall.connect(server.address, BOB) as bob:
        with pytest.raises(cellwall.NotFound):
            bob.attach(shared.id)
        assert shared.id not in [each.id for each in bob.sandboxes()]


def test_nobody_listens_there() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(cellwall.ServerUnreachable) as refused:
        cellwall.connect(f"http://127.0.0.1:{port}", "k" * 32)
    assert refused.value.remedy
    assert time.monotonic() - began < sum(DELAYS_S) + 5


def test_server_that_is_none_of_ours_is_named(proxy: CuttingProxy) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    other = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    with pytest.raises(cellwall.ServerUnreachable, match="not as cellwall does"):
        cellwall.connect(f"http://127.0.0.1:{other.server_port}", "k" * 32)
    other.shutdown()
    other.server_close()


def test_server_on_a_unix_socket(tmp_path: Path) -> None:
    from kit.servers import ALICE, configuration, start

    path = tmp_path / "s"
    made = start(tmp_path, "--unix", str(path), config=configuration())
    try:
        with cellwall.connect(f"unix:{path}", ALICE) as client, client.Sandbox() as sandbox:
            assert sandbox.run("6 * 7").text == "42"
            terminal = sandbox.commands.start(["echo", "hi"], pty=(24, 80))
            assert b"".join(terminal) == b"hi\r\n"
    finally:
        made.stop()


def test_variables_name_server_and_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from kit.servers import ALICE

    monkeypatch.setenv("CELLWALL_URL", f"{server.address}/")
    monkeypatch.setenv("CELLWALL_API_KEY", ALICE)
    with cellwall.connect() as client:
        assert client.run("print(1)").stdout == "1\n"


def test_client_of_before_a_fork_says_so(direct: Client) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            direct.statistics()
        except cellwall.UsageError as error:
            os.write(write, error.message.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as said:
        assert b"before a fork" in said.read()
    assert direct.statistics()["version"] == cellwall.__version__
