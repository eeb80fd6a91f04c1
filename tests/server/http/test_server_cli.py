"""The command line against a real server: `cellwall sandbox` and `cellwall top`, end to end."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellwall.apps.cli.top import SHOWN
from kit.servers import ADMIN, ALICE, Server, new_sandbox

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]
ARGV = [sys.executable, "-m", "cellwall.apps.cli.main"]


def environ(server: Server, key: str = ALICE) -> dict[str, str]:
    return {**os.environ, "CELLWALL_URL": server.address, "CELLWALL_API_KEY": key, "TERM": "dumb"}


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    def call(*words: str, stdin: bytes = b"") -> Done:
        return subprocess.run(
            [*ARGV, *words], input=stdin, capture_output=True, check=False, cwd=tmp_path,
            env=environ(server), timeout=50,
        )  # fmt: skip

    return call


@pytest.fixture
def sandbox(server: Server) -> str:
    return new_sandbox(server.client())


def test_life_of_a_sandbox(run: Run) -> None:
    words = ("--name", "life", "--memory", "128", "--limit", "processes=50", "--env", "A=b c")
    made = run("sandbox", "create", *words, "--metadata", "job=7")
    assert made.returncode == 0, made.stderr
    sandbox_id = made.stdout.decode().strip()
    listed = json.loads(run("sandbox", "ls", "--metadata", "job=7", "--json").stdout)
    assert [each["id"] for each in listed] == [sandbox_id]
    assert (listed[0]["limits"]["memory_mb"], listed[0]["limits"]["processes"]) == (128, 50)
    table = run("sandbox", "ls").stdout.decode()
    assert sandbox_id in table
    assert "job=7" in table
    assert run("sandbox", "exec", "life", "--", "printenv", "A").stdout == b"b c\n"
    logged = run("sandbox", "logs", "life").stdout.decode().splitlines()
    assert "created template=python" in logged[0]
    assert "command ended" in logged[-1]
    assert run("sandbox", "rm", "life").stdout.decode().strip() == sandbox_id
    assert sandbox_id not in run("sandbox", "ls").stdout.decode()
    assert sandbox_id in run("sandbox", "ls", "--all").stdout.decode()
    again = run("sandbox", "exec", sandbox_id, "--", "true")
    assert (again.returncode, b"it was closed" in again.stderr) == (125, True)


def test_volumes_of_a_sandbox_go_with_the_request(run: Run) -> None:
    for word, said in (("none:/data:ro", b"volumes_mb"), ("none", b"NAME:PATH")):
        refused = run("sandbox", "create", "--volume", word)
        assert (refused.returncode, said in refused.stderr) == (125, True), refused.stderr


def test_what_was_asked_above_the_ceiling_is_said(run: Run) -> None:
    made = run("sandbox", "create", "--memory", "1000000")
    assert made.returncode == 0
    assert b"memory_mb: 1e+06 is above" in made.stderr


def test_exec_is_a_filter(run: Run, sandbox: str) -> None:
    done = run("sandbox", "exec", sandbox, "--", "bash", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)
    fed = run("sandbox", "exec", "-i", sandbox, "--", "tr", "a-z", "A-Z", stdin=b"abc\n" * 1000)
    assert (fed.stdout, fed.returncode) == (b"ABC\n" * 1000, 0)


def test_exec_says_how_it_ended(run: Run, sandbox: str) -> None:
    late = run("sandbox", "exec", "--timeout", "0.4", sandbox, "--", "sleep", "50")
    assert (late.returncode, b"wall_time" in late.stderr) == (124, True)
    none = run("sandbox", "exec", sandbox, "--", "no-such-program")
    assert (none.returncode, b"no-such-program" in none.stderr) == (125, True)
    assert run("sandbox", "exec", sandbox, "--", "bash", "-c", "kill -15 $$").returncode == 143


def test_exec_detached_runs_on(run: Run, sandbox: str, server: Server) -> None:
    done = run("sandbox", "exec", "-d", sandbox, "--", "sleep", "100")
    path = f"/sandboxes/{sandbox}/commands/{done.stdout.decode().strip()}"
    assert server.client().get(path).json()["status"] == "running"


def test_interrupted_exec_ends_its_command(server: Server, sandbox: str) -> None:
    words = ["sandbox", "exec", sandbox, "--", "bash", "-c", "echo up; exec sleep 100"]
    with subprocess.Popen(
        [*ARGV, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ(server)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    commands = server.client().get(f"/sandboxes/{sandbox}/commands").json()["commands"]
    path = f"/sandboxes/{sandbox}/commands/{commands[0]['id']}"
    assert server.client().get(path, params={"wait": 20}).json()["status"] == "ended"


@pytest.mark.parametrize("options", [(), ("-i",)])
def test_exec_ends_with_its_reader_and_ends_its_command(
    server: Server, sandbox: str, options: tuple[str, ...]
) -> None:
    """Also where SIGINT is ignored, as behind `&` in a script."""
    script = "echo up; read -t 1 < <(sleep 9); echo; exec sleep 100"
    words = ["sandbox", "exec", *options, sandbox, "--", "bash", "-c", script]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [*ARGV, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=environ(server),
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"up\n"
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == b""
    commands = server.client().get(f"/sandboxes/{sandbox}/commands").json()["commands"]
    path = f"/sandboxes/{sandbox}/commands/{commands[0]['id']}"
    assert server.client().get(path, params={"wait": 20}).json()["status"] == "ended"


def test_files_and_directories_are_copied_both_ways(run: Run, sandbox: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "a.txt").write_text("a")
    (tree / "go.sh").write_text("#!/bin/sh\necho went")
    (tree / "go.sh").chmod(0o755)
    for words in (("tree", f"{sandbox}:"), ("tree/go.sh", f"{sandbox}:bin/")):
        done = run("sandbox", "cp", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert run("sandbox", "exec", sandbox, "--", "bin/go.sh").stdout == b"went\n"
    assert run("sandbox", "cp", f"{sandbox}:tree", "back").returncode == 0
    assert (tmp_path / "back" / "sub" / "a.txt").read_text() == "a"
    assert run("sandbox", "cp", f"{sandbox}:tree/sub/a.txt", "./").returncode == 0
    assert (tmp_path / "a.txt").read_text() == "a"
    again = run("sandbox", "cp", f"{sandbox}:tree", "back/")  # becomes back/tree
    assert again.returncode == 0
    full = run("sandbox", "cp", f"{sandbox}:tree", f"{tmp_path}/back/../back/tree/../tree")
    assert full.returncode == 0  # an existing directory takes it in: back/tree/tree
    assert (tmp_path / "back" / "tree" / "tree" / "go.sh").exists()
    none = run("sandbox", "cp", f"{sandbox}:nothing", "x")
    assert (none.returncode, b"No such file" in none.stderr) == (125, True)


def test_file_that_does_not_say_its_size_is_not_copied(run: Run, sandbox: str) -> None:
    done = run("sandbox", "cp", "/proc/cpuinfo", f"{sandbox}:")
    assert done.returncode == 125
    assert b"/proc/cpuinfo does not say its size" in done.stderr
    assert run("sandbox", "cp", "/dev/null/x", f"{sandbox}:").returncode == 125


def test_logs_follow_until_the_end(server: Server, sandbox: str) -> None:
    with subprocess.Popen(
        [*ARGV, "sandbox", "logs", "--follow", "--json", sandbox],
        stdout=subprocess.PIPE, env=environ(server),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "created"
        server.client().delete(f"/sandboxes/{sandbox}")
        assert [json.loads(line)["event"] for line in process.stdout] == ["ended"]
        assert process.wait(20) == 0


def test_top_shows_what_runs(run: Run, sandbox: str) -> None:
    shown = run("top", "--once", "--json")
    found = json.loads(shown.stdout)
    row = next(row for row in found["sandboxes"] if row["id"] == sandbox)
    assert row["memory_bytes"] > 0
    assert found["server"]["sandboxes"] >= 1
    assert sandbox[:SHOWN] in run("top", "--once").stdout.decode()
    assert run("sandbox", "exec", sandbox[:SHOWN], "--", "true").returncode == 0


# -- at a terminal -----------------------------------------------------------------------------


class Console:
    """A command of ours on a pseudo-terminal."""

    def __init__(self, server: Server, *words: str, key: str = ALICE) -> None:
        self.fd, self._theirs = pty.openpty()
        termios.tcsetwinsize(self._theirs, (30, 100))
        self.before = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            [*ARGV, *words], stdin=self._theirs, stdout=self._theirs, stderr=self._theirs,
            env={**environ(server, key), "TERM": "xterm"}, start_new_session=True,
        )  # fmt: skip

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def read_until(self, wanted: str, within_s: float = 30) -> str:
        seen = ""
        deadline = time.monotonic() + within_s
        while wanted not in seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{wanted!r} did not come; there is {seen!r}"
            seen += os.read(self.fd, 4096).decode("utf-8", "replace")
        return seen

    def resize(self, rows: int, cols: int) -> None:
        termios.tcsetwinsize(self.fd, (rows, cols))
        self.process.send_signal(signal.SIGWINCH)

    @property
    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self.fd)


@pytest.fixture
def console(server: Server, sandbox: str) -> Iterator[Console]:
    # Not bash: its readline reads the size and sets what it read, over a resize in between.
    made = Console(server, "sandbox", "shell", sandbox, "--", "sh")
    yield made
    made.close()


def test_shell_is_a_terminal_inside_and_leaves_ours_as_it_was(console: Console) -> None:
    console.read_until("$ ")
    assert not console.is_as_before
    console.type("stty size\n")
    console.read_until("30 100")
    console.resize(40, 120)
    console.type("sleep 0.2; stty size\n")
    console.read_until("40 120")
    console.type("sh -c 'echo $((60+6)); exec sleep 100'\n")  # says so from its own group
    console.read_until("66\r\n")
    console.type("\x03")
    console.type("echo $((6*7))$?\n")
    console.read_until("42130")
    console.type("exit 3\n")
    assert console.process.wait(20) == 3
    assert console.is_as_before


def test_shell_ends_with_its_sandbox(console: Console, server: Server, sandbox: str) -> None:
    console.read_until("$ ")
    server.client().delete(f"/sandboxes/{sandbox}")
    assert console.process.wait(20) != 0
    assert console.is_as_before


def test_live_top_draws_again_until_it_is_interrupted(server: Server) -> None:
    sandbox = new_sandbox(server.client(ADMIN))  # whose only one it is: the screen has 30 lines
    console = Console(server, "top", "--interval", "0.3", key=ADMIN)
    try:
        for _ in range(3):
            console.read_until(sandbox[:SHOWN])
        console.process.send_signal(signal.SIGINT)
        assert console.process.wait(20) == 130
    finally:
        console.close()
