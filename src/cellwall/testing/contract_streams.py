"""Contract for streams: terminals, ports, watches.

`contract.RuntimeContract` includes it; subclass that. Every test leaves the class's one sandbox
usable for the others.
"""

# ruff: noqa: S101 - a test suite, shipped so that third parties can run it

from __future__ import annotations

import itertools
import queue
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cellwall.embedded import Sandbox
from cellwall.model.errors import FileError, PortError
from cellwall.model.outcome import Verdict
from cellwall.surface.sync.ports import SyncConnection
from cellwall.surface.sync.terminals import SyncTerminal

_PATIENCE_S = 10.0

_JOB = """
import os, signal, time
def show(word):  # print() is not to be entered again by the next signal
    os.write(1, "{} {} {}\\n".format(word, *os.get_terminal_size()).encode())
signal.signal(signal.SIGWINCH, lambda *_: show("resized"))
signal.signal(signal.SIGCONT, lambda *_: show("again"))
try:
    show("on")  # whatever comes next may come before it has returned
    while True: time.sleep(0.01)  # a pause could begin just after its signal
except KeyboardInterrupt:
    print("interrupted")
"""


_WEB = """
import http.server
class Server(http.server.ThreadingHTTPServer): request_queue_size = 128
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words): pass
server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""

_ECHO = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as line:
        while data := line.recv(65536): line.sendall(data)
        line.sendall(b"end")
"""

_NOBODY = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server: print(server.getsockname()[1])
"""


class StreamsContract:
    """Contract tests for streams; see the module."""

    # -- terminals ---------------------------------------------------------------------------

    def test_terminal_is_a_terminal(self, sandbox: Sandbox) -> None:
        """A terminal has a size that can change, keys that interrupt, and job control."""
        sandbox.files.write("job.py", _JOB)
        with _terminal(sandbox, ["/bin/bash", "--norc"], (33, 101)) as terminal:
            assert [c.id for c in sandbox.commands.list()] == [terminal.id]
            terminal.write("python3 job.py\n")
            _read_until(terminal, b"on 101 33")
            terminal.write("\x1a")
            _read_until(terminal, b"Stopped")
            terminal.write("fg\n")
            _read_until(terminal, b"again")
            terminal.resize(44, 55)
            _read_until(terminal, b"resized 55 44")
            terminal.write("\x03")
            _read_until(terminal, b"interrupted")
            terminal.write("exit 7\n")
            assert _read_to_end(terminal)
            assert terminal.wait().exit_code == 7

    def test_terminal_passes_bytes_and_cuts_nothing(self, sandbox: Sandbox) -> None:
        """More bytes than any output limit pass unchanged."""
        script = "stty raw -echo; echo go; head -c 65536 | tee copy; cat big big big"
        sandbox.files.write("big", bytes(range(256)) * 8192)
        with _terminal(sandbox, ["/bin/bash", "-c", script], (24, 80)) as terminal:
            _read_until(terminal, b"go\n")
            terminal.write(bytes(range(256)) * 256)
            assert _read_to_end(terminal) == bytes(range(256)) * (256 + 3 * 8192)
            result = terminal.wait()
            assert (result.exit_code, result.outcome.truncated.stdout) == (0, 0)

    def test_unread_terminal_stops_its_program_only(self, sandbox: Sandbox) -> None:
        """The sandbox still answers, and the stopped program can be ended."""
        terminal = sandbox.commands.start("cat /dev/zero", pty=(24, 80))
        assert sandbox.run("1").verdict is Verdict.OK
        assert terminal.is_running
        terminal.close()
        assert terminal.wait().outcome.signal == 9

    # -- ports -------------------------------------------------------------------------------

    def test_server_inside_is_reached_by_ordinary_clients(self, sandbox: Sandbox) -> None:
        """Fifty clients at once use a forwarded port."""
        content = bytes(range(256)) * 4096
        sandbox.files.write("page.bin", content)
        with _served(sandbox, _WEB) as port, sandbox.ports.forward(port) as forward:
            url = f"http://127.0.0.1:{forward.port}/page.bin"
            with ThreadPoolExecutor(50) as threads:
                answers = list(threads.map(_fetch, [url] * 50))
        assert all(answer == content for answer in answers)

    def test_connection_carries_bytes_both_ways(self, sandbox: Sandbox) -> None:
        """More bytes than any window pass, and each direction ends by itself."""
        content = bytes(range(256)) * 8192
        with (
            _served(sandbox, _ECHO) as port,
            sandbox.ports.connect(port) as line,
            ThreadPoolExecutor(1) as threads,
        ):
            answer = threads.submit(lambda: b"".join(line))
            line.sendall(content)
            line.shutdown()
            assert answer.result() == content + b"end"

    def test_port_of_nobody_is_refused(self, sandbox: Sandbox) -> None:
        """The error has a reason; the forwarded port disconnects its clients."""
        port = int(sandbox.commands.run(["python3", "-c", _NOBODY]).stdout)
        with pytest.raises(PortError) as caught:
            sandbox.ports.connect(port)
        assert caught.value.reason == "refused"
        with sandbox.ports.forward(port) as forward, pytest.raises(OSError, match=r"."):
            _fetch(f"http://127.0.0.1:{forward.port}/")

    def test_server_that_is_killed_resets_its_connections(self, sandbox: Sandbox) -> None:
        """A later read ends or fails; it does not hang."""
        with _served(sandbox, _ECHO) as port:
            line = sandbox.ports.connect(port)
            line.sendall(b"x")
            assert line.recv() == b"x"
        assert line.recv() == b""
        with pytest.raises(PortError) as caught:
            _send_on(line)
        assert caught.value.reason == "reset"
        line.close()

    def test_listening_ports_are_listed(self, sandbox: Sandbox) -> None:
        """The list is the guest's report."""
        with _served(sandbox, _ECHO) as port:
            assert port in [found.port for found in sandbox.ports.list()]
        assert port not in [found.port for found in sandbox.ports.list()]

    # -- watches -----------------------------------------------------------------------------

    def test_watch_tells_what_changes_below(self, sandbox: Sandbox) -> None:
        """Changes are reported in order, with relative paths, from the start of the watch on."""
        sandbox.files.write("watched/old", "x")
        with sandbox.files.watch("watched") as watch:
            sandbox.files.write("watched/deep/new", "x")
            seen = list(itertools.islice(watch, 2))  # before it is moved away from under the watch
            sandbox.run("open('watched/old', 'a').write('y')")
            sandbox.files.move("watched/deep", "watched/moved")
            sandbox.files.write("watched/moved/later", "x")
            sandbox.files.remove("watched", recursive=True)
            changes = [(c.kind, c.path, c.target) for c in itertools.chain(seen, watch)]
        # A file written during the first look at its directory may be reported twice.
        changes = [each for each in changes if each != ("modified", "deep/new", None)]
        assert changes[:5] == [
            ("created", "deep", None),
            ("created", "deep/new", None),
            ("modified", "old", None),
            ("moved", "deep", "moved"),
            ("created", "moved/later", None),
        ]
        assert changes[-1] == ("removed", ".", None)

    def test_closed_watch_wakes_who_waits(self, sandbox: Sandbox) -> None:
        """A waiting reader gets the end; an unwatchable path is an error with a reason."""
        watch = sandbox.files.watch()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(next, watch, None)
            watch.close()
            assert waiting.result(20) is None
        with pytest.raises(FileError) as caught:
            sandbox.files.watch("missing")
        assert caught.value.reason == "not_found"


@contextmanager
def _served(sandbox: Sandbox, code: str) -> Iterator[int]:
    """Run a server inside; yield the port that it prints."""
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    server = sandbox.commands.start(["python3", "-c", code], on_stdout=said.put)
    try:
        yield int(said.get(timeout=20))
    finally:
        server.kill()
        server.wait()


def _send_on(line: SyncConnection) -> None:
    """Send until it fails: the end of the other side may arrive before the reset after it."""
    for _ in range(64):
        line.sendall(bytes(1 << 20))


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - a URL of our own
        return bytes(answer.read())


@contextmanager
def _terminal(sandbox: Sandbox, argv: list[str], pty: tuple[int, int]) -> Iterator[SyncTerminal]:
    """Yield a terminal and end it after the test, even a failed one: other tests list commands."""
    terminal = sandbox.commands.start(argv, pty=pty)
    try:
        yield terminal
    finally:
        terminal.close()
        terminal.wait()


@contextmanager
def _patience(terminal: SyncTerminal) -> Iterator[None]:
    """Hang up a terminal without output for too long, so that its reader returns."""
    timer = threading.Timer(_PATIENCE_S, terminal.close)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _read_until(terminal: SyncTerminal, expected: bytes) -> bytes:
    """Read up to the piece that completes `expected`."""
    seen = b""
    with _patience(terminal):
        while expected not in seen:
            piece = terminal.read()
            assert piece, f"the terminal ended after {seen!r}"
            seen += piece
    return seen


def _read_to_end(terminal: SyncTerminal) -> bytes:
    """Read until the program has ended."""
    with _patience(terminal):
        return b"".join(terminal)
