"""`cellwall shell` at a terminal and from a pipe, in a real sandbox."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Require
from kit.command_line import LEVEL, works
from kit.places import ROOT

ARGV = [sys.executable, "-m", "cellwall.apps.cli.main", "shell", "--isolation", LEVEL]
ENVIRON = {**os.environ, "CELLWALL_ALLOW_PROCESS": "1", "TERM": "dumb"}


@pytest.fixture(autouse=True)
def _sandboxes(require: Require) -> None:
    require("sandboxes", not works(), works())


def piped(source: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ARGV, *options], input=source, capture_output=True, check=False, encoding="utf-8",
        cwd=folder, env=ENVIRON, timeout=50,
    )  # fmt: skip


class Terminal:
    """A shell on a pseudo-terminal."""

    def __init__(self, folder: Path) -> None:
        self.fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ARGV, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=ENVIRON,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def read_until(self, wanted: str, within_s: float = 30) -> str:
        seen = ""
        deadline = time.monotonic() + within_s
        while wanted not in seen:
            ready, _, _ = select.select([self.fd], [], [], deadline - time.monotonic())
            assert ready, f"{wanted!r} did not come; there is {seen!r}"
            seen += os.read(self.fd, 4096).decode()
        return seen

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        os.close(self.fd)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    shell = Terminal(tmp_path)
    shell.read_until(">>> ")
    yield shell
    shell.close()


def test_a_pipe_runs_inputs_in_one_session_without_prompts(tmp_path: Path) -> None:
    done = piped("x = 20\ndef f(n):\n    return n + 1\n\nf(x)\nprint('bye')", tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("21\nbye\n", "", 0)


def test_a_session_of_another_language(tmp_path: Path) -> None:
    done = piped("x=20\n\nfor n in 1 2; do\necho $((x + n))\ndone\n", tmp_path, "-l", "sh")
    assert (done.stdout, done.stderr, done.returncode) == ("21\n22\n", "", 0)


def test_example_of_the_page_prints_what_it_should(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- runs: shell-bash -->\n```sh\n(.*?)```", page, re.DOTALL)
    ours = f"{shlex.join(ARGV[:-3])} shell --isolation {LEVEL}"
    command = block.replace("cellwall shell", ours)
    assert command != block
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, check=False, encoding="utf-8",
        cwd=tmp_path, env=ENVIRON, timeout=50,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("21\n", "", 0)


def test_a_language_without_sessions_is_refused(tmp_path: Path) -> None:
    done = piped("", tmp_path, "--language", "go")
    assert (done.stdout, done.returncode) == ("", 125)
    assert "go keeps no state" in done.stderr
    assert "javascript" in done.stderr


def test_a_pipe_ends_with_1_if_an_input_failed(tmp_path: Path) -> None:
    done = piped("1 / 0\nprint('after')\n", tmp_path)
    assert (done.stdout, done.returncode) == ("after\n", 1)
    assert done.stderr.count("ZeroDivisionError: division by zero") == 1


def test_state_and_results_at_a_terminal(terminal: Terminal) -> None:
    terminal.type("n = 6 * 7\n")
    terminal.read_until(">>> ")
    terminal.type("n + 1\n")
    assert "\n43\r\n" in terminal.read_until(">>> ")


def test_a_block_is_prompted_for_until_complete(terminal: Terminal) -> None:
    terminal.type("for i in 'ab':\n")
    terminal.read_until("... ")
    terminal.type("    print(i * 3)\n")
    terminal.read_until("... ")
    terminal.type("\n")
    assert "aaa\r\nbbb\r\n" in terminal.read_until(">>> ")


def test_control_characters_of_a_program_are_shown_not_obeyed(terminal: Terminal) -> None:
    terminal.type("print(chr(27) + ']0;owned' + chr(7))\n")
    assert "^[]0;owned^G" in terminal.read_until(">>> ")


def test_interrupt_stops_the_cell_and_keeps_the_state(terminal: Terminal) -> None:
    terminal.type("kept = 5\n")
    terminal.read_until(">>> ")
    terminal.type("print('go' * 2, flush=True) or all(True for _ in iter(int, 1))\n")
    terminal.read_until("gogo\r\n")
    terminal.interrupt()
    assert "KeyboardInterrupt" in terminal.read_until(">>> ")
    terminal.type("kept * 11\n")
    assert "55\r\n" in terminal.read_until(">>> ")


def test_end_of_input_ends_the_shell_with_0(terminal: Terminal) -> None:
    terminal.type("1 / 0\n")
    terminal.read_until(">>> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=20) == 0


_STILL = "print('still here', 'x' in globals(), os.path.exists('kept'))\n"


def test_after_a_dead_context_a_new_one_begins_and_is_said(tmp_path: Path) -> None:
    hog = "taken = [bytearray(b'1') * (1 << 20) for _ in range(4000)]\n"
    source = "x = 1; open('kept', 'w').close()\n" + hog + "import os\n" + _STILL
    done = piped(source, tmp_path)
    assert done.stdout == "still here False True\n"
    assert "the context has ended and its state is lost" in done.stderr
    assert done.returncode == 1


def test_after_a_dead_sandbox_a_new_one_begins_and_is_said(tmp_path: Path) -> None:
    fill = "for n in range(40): open(f'file{n}', 'wb').write(b'1' * (8 << 20))\n\n"
    source = "x = 1; open('kept', 'w').close()\n" + fill + "import os\n" + _STILL
    done = piped(source, tmp_path, "--memory", "192")
    assert done.stdout == "still here False False\n"
    assert "its variables and files are gone" in done.stderr
    assert done.returncode == 1


def test_input_that_cannot_be_sent_ends_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        ARGV, input=b"x = 5\nprint('\xe9')\nprint('a\0b')\nprint(x)\n", capture_output=True,
        check=False, cwd=tmp_path, env=ENVIRON, timeout=50,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (b"5\n", 1)
    assert [line.split(b":")[1] for line in done.stderr.splitlines()] == [b" code", b" code"]


def test_image_that_cannot_be_saved_ends_nothing(tmp_path: Path) -> None:
    shown = (
        "from IPython.display import display\ndisplay({{'image/png': '{}'}}, raw=True)\nprint(1)\n"
    )
    done = piped(shown.format("a"), tmp_path)
    assert (done.stdout, done.returncode) == ("1\n", 0)
    assert done.stderr == "cellwall: image not saved: it is not base64\n"
    (tmp_path / "gone").mkdir()
    command = f"cd gone && rmdir ../gone && exec {shlex.join(ARGV)}"
    done = subprocess.run(
        ["bash", "-c", command], input=shown.format("aGk="), capture_output=True, check=False,
        encoding="utf-8", cwd=tmp_path, env=ENVIRON, timeout=50,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("1\n", 0)
    assert "image not saved as cellwall-1.png: No such file or directory" in done.stderr


def test_an_image_becomes_a_file_whose_name_is_said(tmp_path: Path) -> None:
    source = (
        "class Picture:\n"
        "    def _repr_png_(self):\n"
        "        return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20)\n"
        "\n"
        "Picture()\n"
    )
    (tmp_path / "cellwall-1.png").touch()  # never overwritten
    done = piped(source, tmp_path)
    assert "image saved as cellwall-2.png" in done.stderr
    assert (tmp_path / "cellwall-2.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "cellwall-1.png").read_bytes() == b""
