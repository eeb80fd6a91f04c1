"""Contract for limits in a session: only the execution that breaks one ends.

Part of `contract.RuntimeContract`, whose fixtures these tests use. Each test breaks a limit in a
sandbox that has a file, a second context with a variable and a server in the background, and checks
all three afterwards. Programs in a sandbox of their own are tested in `contract`.
"""

# ruff: noqa: S101 - a test suite, shipped so that third parties can run it

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from cellwall.embedded import Sandbox
    from cellwall.testing.contract import Subject

_DEAF = "import signal; signal.signal(2, signal.SIG_IGN)\n"
_ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('escaped', 'w').write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists('escaped') or not open('escaped').read(): time.sleep(0.01)
"""
_HOG = "kept = []\nwhile True: kept.append(bytearray(b'x') * (4 << 20))"
_CROWD = """
import os, time
for _ in range(300):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
time.sleep(600)"""
_SERVER = """
import socket
server = socket.create_server(('127.0.0.1', 8765))
while True:
    with server.accept()[0] as client: client.sendall(b'here')"""
_CALL = """
import socket, time
for _ in range(500):
    try:
        print(socket.create_connection(('127.0.0.1', 8765), 5).recv(9).decode())
        break
    except ConnectionRefusedError: time.sleep(0.01)"""
_BURNER = """
import os, time
while time.process_time() < 2.5:
    for _ in range(100_000): pass
open('burnt.part', 'w').close()
os.rename('burnt.part', 'burnt')
while True: pass"""
_WAIT_FOR_BURNER = "import os, time\nwhile not os.path.exists('burnt'): time.sleep(0.02)"
_BURN = """
import time
while time.process_time() - {begun} < {s}:
    for _ in range(100_000): pass"""
_BURN_IN_CHILDREN = """
import os, time
while True:
    if os.fork() == 0:
        for _ in range(3_000_000): pass
        os._exit(0)
    os.wait()"""
_BURN_ALONE = _DEAF + "while True: pass"
_BURN_IN_A_LATE_CHILD = """
import os, time
while time.process_time() < 0.3: pass
if os.fork() == 0:
    while True: pass
os.wait()"""
_LIMITS = {"memory_mb": 256, "processes": 40, "wall_s": 30.0, "cpu_s": 30.0}


class LimitsContract:
    """Contract tests for limits; see the module."""

    def test_cell_that_ignores_its_wall_limit_ends_alone(self, subject: Subject) -> None:
        """The cell is interrupted once, then killed."""
        with _inhabited(subject) as sandbox:
            ended = sandbox.run(_DEAF + "while True: pass", timeout=0.3)
            assert ended.verdict is Verdict.WALL_TIME
            assert any("state is lost" in note for note in ended.outcome.notes)
            _check_replaced(sandbox)

    def test_cell_that_ignores_its_cpu_limit_ends_alone(self, subject: Subject) -> None:
        """The cell's child, which uses CPU time beside it, ends too."""
        with _inhabited(subject, cpu_s=0.4) as sandbox:
            ended = sandbox.run(_DEAF + "import os\nos.fork()\nwhile True: pass")
            assert ended.verdict is Verdict.CPU_TIME
            _check_replaced(sandbox)

    def test_cell_that_needs_too_much_memory_ends_alone(self, subject: Subject) -> None:
        """The kernel or a watchdog has killed the cell's context."""
        with _inhabited(subject) as sandbox:
            ended = sandbox.run(_HOG)
            assert ended.verdict is Verdict.MEMORY
            _check_replaced(sandbox)

    def test_cell_with_too_many_processes_ends_alone(self, subject: Subject) -> None:
        """All processes of the cell end, so that there is room again."""
        with _inhabited(subject, memory_mb=2048) as sandbox:
            assert sandbox.run(_CROWD).verdict is Verdict.PROCESSES
            _check_replaced(sandbox)

    def test_command_above_each_limit_ends_alone(self, subject: Subject) -> None:
        """The context's variable is kept, too."""
        with _inhabited(subject, memory_mb=1024) as sandbox:
            for code, verdict in (
                (_DEAF + "while True: pass", Verdict.WALL_TIME),
                (_HOG, Verdict.MEMORY),
                (_CROWD, Verdict.PROCESSES),
            ):
                limit_s = 0.5 if verdict is Verdict.WALL_TIME else 20.0
                ended = sandbox.commands.run(["python3", "-c", code], timeout=limit_s)
                assert ended.outcome.verdict is verdict
            assert sandbox.run("mine").text == "'mine'"

    def test_command_above_its_cpu_limit_ends_alone(self, subject: Subject) -> None:
        """One command never has a child, another makes one after the first look at it."""
        with _inhabited(subject, cpu_s=0.6) as sandbox:
            for code in (_BURN_ALONE, _BURN_IN_A_LATE_CHILD):
                ended = sandbox.commands.run(["python3", "-c", code], timeout=20)
                assert ended.outcome.verdict is Verdict.CPU_TIME
            assert sandbox.run("mine").text == "'mine'"

    def test_burner_beside_uses_up_no_cells_cpu_time(self, subject: Subject) -> None:
        """A command that used twice a cell's CPU limit does not count for the cell; children do."""
        with _inhabited(subject, cpu_s=1.0, wall_s=60.0) as sandbox:
            burner = sandbox.commands.start(["python3", "-c", _BURNER])
            waited = sandbox.run(_WAIT_FOR_BURNER)
            assert waited.verdict is Verdict.OK
            assert waited.outcome.usage.cpu_s < 1.0
            assert sandbox.run(_BURN_IN_CHILDREN).verdict is Verdict.CPU_TIME
            assert sandbox.run(_DEAF + "while True: pass").verdict is Verdict.CPU_TIME
            assert burner.is_running
            burner.kill()
            _check_replaced(sandbox)

    def test_two_at_once_have_their_cpu_time_each(self, subject: Subject) -> None:
        """Two executions use more than the limit together, but neither exceeds it."""
        with _inhabited(subject, cpu_s=1.0, wall_s=60.0) as sandbox, ThreadPoolExecutor() as pool:
            command = _BURN.format(begun=0, s=0.7)
            beside = pool.submit(sandbox.commands.run, ["python3", "-c", command])
            cell = sandbox.run(
                "import time\nb = time.process_time()\n" + _BURN.format(begun="b", s=0.7)
            )
            assert cell.verdict is Verdict.OK
            assert beside.result().outcome.verdict is Verdict.OK

    def test_descendants_that_escaped_end_with_their_cell(self, subject: Subject) -> None:
        """A grandchild in a session of its own, whose parent has ended, ends with the cell."""
        with _inhabited(subject) as sandbox:
            code = _ESCAPE + _DEAF + "print(open('escaped').read())\nwhile True: pass"
            ended = sandbox.run(code, timeout=2)
            assert ended.verdict is Verdict.WALL_TIME
            _check_replaced(sandbox)
            looked = sandbox.run(f"import os\nos.kill({int(ended.stdout)}, 0)")
            assert looked.error is not None
            assert looked.error.name == "ProcessLookupError"


@contextmanager
def _inhabited(subject: Subject, **limits: float) -> Iterator[Sandbox]:
    """Yield a sandbox with a file, two contexts and a server, and check all of them at the end."""
    with subject.sandbox(limits={**_LIMITS, **limits}) as sandbox:
        sandbox.files.write("data.txt", "data")
        sandbox.contexts.create("other")
        assert sandbox.run("theirs = 'theirs'", context="other").ok
        assert sandbox.run("mine = 'mine'").ok
        server = sandbox.commands.start(["python3", "-c", _SERVER])
        assert sandbox.run(_CALL, context="other").stdout == "here\n"
        yield sandbox
        assert sandbox.files.read("data.txt") == "data"
        assert sandbox.run("theirs", context="other").text == "'theirs'"
        assert sandbox.run(_CALL).stdout == "here\n"
        assert server.is_running


def _check_replaced(sandbox: Sandbox) -> None:
    """Check that the context's next cell finds no variable, and that a note says why."""
    after = sandbox.run("'mine' in globals()")
    assert after.text == "False"
    assert any("new one" in note for note in after.outcome.notes)
