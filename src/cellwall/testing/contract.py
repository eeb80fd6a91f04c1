"""Runtime contract: the tests that every runtime passes, as a pytest class.

Public: an adapter's test module subclasses `RuntimeContract`, sets `runtime_name` and `isolation`
and, if necessary, overrides the fixture `make_engine`. It does not test confinement: attacks have
their own suite. A test that an adapter cannot pass yet goes into `deviations` by name with a
reason, and becomes a strict xfail: once it passes, it fails until it leaves the list.
"""

# ruff: noqa: S101 - a test suite, shipped so that third parties can run it

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cellwall.embedded import Runner, Sandbox
from cellwall.engine.attempts.attempt import OnEvent
from cellwall.engine.engine import Engine
from cellwall.engine.policy.settings import EngineSettings
from cellwall.model.errors import FileError, SandboxUnavailable
from cellwall.model.execution import Event, Execution
from cellwall.model.outcome import Verdict
from cellwall.testing.bare import BareTemplates
from cellwall.testing.contract_commands import CommandsContract
from cellwall.testing.contract_limits import LimitsContract
from cellwall.testing.contract_pauses import PausesContract
from cellwall.testing.contract_streams import StreamsContract
from cellwall.testing.contract_tools import ToolsContract


class Subject:
    """An engine on a thread of its own, bound to one runtime."""

    def __init__(self, make_engine: Callable[[], Engine], runtime: str, isolation: str) -> None:
        """Start the thread; `close` must follow."""
        self.runner = Runner(make_engine)
        self._choice = {"runtime": runtime, "isolation": isolation}

    def run(self, code: str, *, on_event: OnEvent | None = None, **options: Any) -> Execution:  # noqa: ANN401 - of Engine.run
        """Run a one-shot program."""
        return self.runner.call(
            lambda engine, put: engine.run(
                code, on_event=None if on_event is None else put, **self._choice, **options
            ),
            on_event,
        )

    def sandbox(self, **options: Any) -> Sandbox:  # noqa: ANN401 - of Engine.create_sandbox
        """Create a sandbox."""
        options.update(self._choice)
        return Sandbox(runner=self.runner, **options)

    def settle(self) -> None:
        """Wait until the pool is full and every destruction has ended."""

        async def work(engine: Engine, _put: object) -> None:
            await engine.wait_settled()
            await engine.pool.wait_full()
            await engine.wait_settled()

        self.runner.call(work)

    def close(self) -> None:
        """Close the engine."""
        self.runner.close()


class RuntimeContract(
    LimitsContract, CommandsContract, StreamsContract, ToolsContract, PausesContract
):
    """All contract tests; subclass it, see the module."""

    runtime_name: ClassVar[str]
    isolation: ClassVar[str]
    deviations: ClassVar[dict[str, str]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def make_engine(cls, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Engine]:
        """Return the engine's factory; override it for another template or state directory."""
        templates = BareTemplates(tmp_path_factory.mktemp("template") / "env")
        settings = EngineSettings(allow_process=True)
        return lambda: Engine(tmp_path_factory.mktemp("state"), settings, templates=templates)

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, make_engine: Callable[[], Engine]) -> Iterator[Subject]:
        """Yield one engine for all tests of the class."""
        subject = Subject(make_engine, cls.runtime_name, cls.isolation)
        yield subject
        subject.close()

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, subject: Subject) -> Iterator[Sandbox]:
        """Yield one live sandbox for the tests that leave it usable."""
        with subject.sandbox() as sandbox:
            yield sandbox

    @pytest.fixture(autouse=True)
    def _expected_deviation(self, request: pytest.FixtureRequest) -> None:
        reason = self.deviations.get(request.node.originalname)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    # -- one-shot: what a program sees and what comes back -----------------------------------

    def test_run_returns_output_and_ok(self, subject: Subject) -> None:
        """A simple program returns its output and the verdict `ok`."""
        execution = subject.run("print('hello')")
        assert (execution.stdout, execution.verdict) == ("hello\n", Verdict.OK)
        assert execution.exit_code == 0

    def test_empty_program_ends_well(self, subject: Subject) -> None:
        """An empty program ends well, as `python3` with an empty file does."""
        for code in ("", " \n"):
            execution = subject.run(code)
            assert (execution.verdict, execution.stdout, execution.stderr) == ("ok", "", "")

    def test_answer_says_which_isolation_ran(self, subject: Subject) -> None:
        """The answer names the runtime that actually ran the program."""
        isolation = subject.run("pass").outcome.isolation
        assert (isolation.runtime, isolation.level.label) == (self.runtime_name, self.isolation)

    def test_stdin_reaches_the_program(self, subject: Subject) -> None:
        """The program reads all of stdin, then its end."""
        text = "line\n" * 100_000
        execution = subject.run("import sys; print(len(sys.stdin.read()))", stdin=text)
        assert execution.stdout == f"{len(text)}\n"

    @pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 1024 * 1024])
    def test_stdin_of_any_size_is_a_pipe(self, subject: Subject, size: int) -> None:
        """Small stdin goes another way than large; a program finds no difference."""
        code = (
            "import os, stat, sys\n"
            "print(stat.S_ISFIFO(os.fstat(0).st_mode), sys.stdin.seekable())\n"
            "print(len(sys.stdin.buffer.read()), os.read(0, 1))\n"
            "print([each for each in range(3, 256) if os.path.exists(f'/proc/self/fd/{each}')])"
        )
        assert subject.run(code, stdin=b"x" * size).stdout == f"True False\n{size} b''\n[]\n"

    def test_program_without_stdin_reads_end_of_file(self, subject: Subject) -> None:
        """A program without stdin does not hang on reading it."""
        assert subject.run("import sys; print(repr(sys.stdin.read()))").stdout == "''\n"

    def test_arguments_and_result_travel_as_json(self, subject: Subject) -> None:
        """`main(**arguments)` is called, and its value is returned."""
        code = "def main(n, names): return {'n': n * 2, 'names': sorted(names)}"
        execution = subject.run(code, arguments={"n": 21, "names": ["b", "a"]})
        assert execution.result == {"n": 42, "names": ["a", "b"]}

    def test_uncaught_exception_is_an_exception(self, subject: Subject) -> None:
        """The answer has the exception's name, and exit status 1."""
        execution = subject.run("{}['missing']")
        assert (execution.verdict, execution.exit_code) == (Verdict.EXCEPTION, 1)
        assert execution.error is not None
        assert execution.error.name == "KeyError"

    def test_exit_code_is_not_a_limit(self, subject: Subject) -> None:
        """Exit codes 137 and 124 are numbers like others."""
        for code in (1, 124, 137):
            execution = subject.run(f"import sys; sys.exit({code})")
            assert (execution.verdict, execution.exit_code) == (Verdict.NONZERO_EXIT, code)

    def test_death_by_signal_is_signalled(self, subject: Subject) -> None:
        """The outcome has the signal's number."""
        execution = subject.run("import os; os.kill(os.getpid(), 11)")
        assert (execution.verdict, execution.outcome.signal) == (Verdict.SIGNALLED, 11)

    @pytest.mark.parametrize("size", [0, 1, 300_000, 2 * 1024 * 1024 + 1])
    def test_files_of_any_size_are_there_first(self, subject: Subject, size: int) -> None:
        """Small files go another way than large ones; a program finds no difference."""
        code = (
            "import hashlib, json, os, sys\n"
            "for path in ('.', 'in', 'in/a', 'b'):\n"
            "    found = os.stat(path)\n"
            "    print(oct(found.st_mode), found.st_uid == os.getuid(), os.path.isdir(path))\n"
            "print(hashlib.sha256(open('in/a', 'rb').read()).hexdigest())\n"
            "print(os.path.getsize('in/a'), json.mine, sys.stdin.read())"
        )
        content = os.urandom(size)
        files = {"in/a": content, "./b": b"", "json.py": b"mine = 1"}
        lines = subject.run(code, files=files, stdin="given").stdout.splitlines()
        assert lines[1:] == [
            *("0o40755 True True", "0o100644 True False", "0o100644 True False"),
            hashlib.sha256(content).hexdigest(),
            f"{size} 1 given",
        ]

    @pytest.mark.parametrize("size", [1, 2 * 1024 * 1024])
    @pytest.mark.parametrize(
        ("paths", "reason"),
        [
            (("a", "a/b"), "not_directory"),
            (("a/b", "a"), "is_directory"),
            (("x" * 300,), "invalid"),
        ],
    )
    def test_files_that_cannot_be_are_an_error(
        self, subject: Subject, paths: tuple[str, ...], reason: str, size: int
    ) -> None:
        """The caller's error names what is wrong, and nothing has run."""
        with pytest.raises(FileError) as raised:
            subject.run("print('ran')", files=dict.fromkeys(paths, b"x" * size))
        assert raised.value.reason == reason

    def test_files_go_in_and_come_back(self, subject: Subject) -> None:
        """Bytes are unchanged; a missing file is noted."""
        execution = subject.run(
            "data = open('in/raw.bin', 'rb').read(); open('out.bin', 'wb').write(data[::-1])",
            files={"in/raw.bin": bytes(range(256))},
            collect=["out.bin", "missing"],
        )
        assert execution.files == {"out.bin": bytes(reversed(range(256)))}
        assert any("missing" in note for note in execution.outcome.notes)

    def test_bash_program_runs(self, subject: Subject) -> None:
        """A bash program gets arguments and stdin and has its own exit status."""
        execution = subject.run(
            'read line; echo "$1 $line"; exit 3', language="bash", args=["a b"], stdin="in\n"
        )
        assert (execution.stdout, execution.exit_code) == ("a b in\n", 3)

    def test_events_are_numbered_and_end(self, subject: Subject) -> None:
        """Events count from 1, without a gap; `end` is the last and carries the outcome."""
        events: list[Event] = []
        subject.run("print('a'); 1/0", on_event=events.append)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert {"stdout", "stderr", "error"} <= {event.kind for event in events}
        assert events[-1].kind == "end"
        assert events[-1].outcome is not None

    def test_runs_share_nothing(self, subject: Subject) -> None:
        """A file of one run does not exist in the next."""
        subject.run("open('left.txt', 'w').write('x')")
        assert subject.run("import os; print(os.listdir())").stdout == "['main.py']\n"

    def test_environment_is_built_from_nothing(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No variable of the host is passed on; requested ones are."""
        monkeypatch.setenv("CELLWALL_TEST_SECRET", "leak")
        code = "import os; print(os.environ.get('CELLWALL_TEST_SECRET'), os.environ.get('MINE'))"
        assert subject.run(code, env={"MINE": "yes"}).stdout == "None yes\n"

    def test_each_sandbox_has_a_boot_id_of_its_own(self, subject: Subject) -> None:
        """It is another one each time, and not the host's, which would name the machine."""
        path = "/proc/sys/kernel/random/boot_id"
        host = Path(path).read_text(encoding="ascii").strip()
        found = {subject.run(f"print(open({path!r}).read(), end='')").stdout for _ in range(3)}
        assert len({host, *(str(uuid.UUID(each.strip())) for each in found)}) == 4

    # -- limits ------------------------------------------------------------------------------

    def test_wall_limit_ends_it_and_keeps_output(self, subject: Subject) -> None:
        """Output printed before the limit is returned."""
        began = time.monotonic()
        execution = subject.run(
            "print('before', flush=True)\nimport time; time.sleep(60)", timeout=0.5
        )
        assert (execution.verdict, execution.stdout) == (Verdict.WALL_TIME, "before\n")
        assert time.monotonic() - began < 5

    def test_cpu_limit_counts_the_whole_tree(self, subject: Subject) -> None:
        """CPU time of a child counts for its parent's program."""
        code = "import os\nos.fork()\nwhile True: pass"
        execution = subject.run(code, limits={"cpu_s": 0.4, "wall_s": 20})
        assert execution.verdict is Verdict.CPU_TIME
        assert execution.outcome.usage.cpu_s < 3

    def test_memory_limit_is_told_from_a_crash(self, subject: Subject) -> None:
        """The kernel's evidence decides, not the exit status."""
        code = "blocks = []\nwhile True: blocks.append(bytearray(b'x') * (4 << 20))"
        execution = subject.run(code, limits={"memory_mb": 64})
        assert execution.verdict is Verdict.MEMORY

    def test_memory_of_a_child_is_the_verdict_of_its_parent(self, subject: Subject) -> None:
        """If the kernel kills only the child, the parent goes on and ends well.

        If the child's own rlimit stops it first, the child waits: a watchdog looks only at
        intervals.
        """
        code = """
import os, signal
if os.fork() == 0:
    kept = []
    try:
        while True: kept.append(bytearray(b'x') * (4 << 20))
    except MemoryError:
        signal.pause()
os.wait()
print('fine')"""
        execution = subject.run(code, limits={"memory_mb": 96, "wall_s": 20})
        assert execution.verdict is Verdict.MEMORY

    def test_too_many_processes_are_contained(self, subject: Subject) -> None:
        """The forks are refused or the program is killed; the verdict is `processes` either way.

        The processes wait: a watchdog may look only at intervals.
        """
        code = """
import os, time
for i in range(300):
    if os.fork() == 0:
        break
time.sleep(30)"""
        execution = subject.run(code, limits={"processes": 20, "wall_s": 20, "memory_mb": 2048})
        assert execution.verdict is Verdict.PROCESSES

    def test_output_is_cut_and_counted(self, subject: Subject) -> None:
        """The rest of the output is drained, and the program goes on to its end."""
        execution = subject.run(
            "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('end')",
            limits={"output_kb": 64},
        )
        assert execution.verdict is Verdict.OUTPUT
        assert len(execution.stdout) == 64 * 1024
        assert execution.outcome.truncated.stdout == 3_000_000 - 64 * 1024
        assert execution.stderr == "end"

    def test_limit_leaves_no_process(self, subject: Subject) -> None:
        """No process is left, grandchildren in sessions of their own included."""
        marker = f"cellwall-contract-{os.getpid()}-{time.monotonic_ns()}"
        code = f"""
import os, subprocess, time
subprocess.Popen(["/bin/bash", "-c", "exec -a {marker} sleep 300"], start_new_session=True)
print("up", flush=True)
time.sleep(300)"""
        seen: list[int] = []

        def look(event: Event) -> None:
            if event.text == "up\n":
                seen.extend(_looked_for(marker))

        execution = subject.run(code, timeout=3, on_event=look)
        assert execution.verdict is Verdict.WALL_TIME
        assert seen, "nothing was there to be left"
        _wait_until(lambda: not _processes_named(marker))

    def test_cancelled_call_leaves_no_process(self, subject: Subject) -> None:
        """An exception in the caller's callback kills the program."""
        marker = f"cellwall-contract-{os.getpid()}-{time.monotonic_ns()}"
        seen: list[int] = []

        def give_up(event: Event) -> None:
            seen.extend(_looked_for(marker))
            raise KeyboardInterrupt

        code = f"exec -a {marker} bash -c 'echo up; sleep 300; true'"
        with pytest.raises(KeyboardInterrupt):
            subject.run(code, language="bash", on_event=give_up)
        assert seen, "nothing was there to be left"
        _wait_until(lambda: not _processes_named(marker))

    # -- sessions ----------------------------------------------------------------------------

    def test_context_keeps_state(self, sandbox: Sandbox) -> None:
        """A context keeps variables as a notebook does, and shows the last expression."""
        sandbox.run("x = 20")
        assert sandbox.run("x + 1").text == "21"

    def test_empty_cell_ends_well_and_keeps_state(self, sandbox: Sandbox) -> None:
        """An empty cell ends well, as in a notebook."""
        sandbox.run("x = 41")
        assert [sandbox.run(code).verdict for code in ("", "  ")] == ["ok", "ok"]
        assert sandbox.run("x + 1").text == "42"

    def test_contexts_do_not_share_names(self, sandbox: Sandbox) -> None:
        """Contexts share files, but no variables."""
        sandbox.contexts.create("other")
        sandbox.run("y = 1; open('shared.txt', 'w').write('s')")
        execution = sandbox.run("print(open('shared.txt').read()); y", context="other")
        assert execution.stdout == "s\n"
        assert execution.error is not None
        assert execution.error.name == "NameError"
        sandbox.contexts.close("other")
        assert sandbox.contexts.list() == ["python"]

    def test_many_executions_of_a_context_queue(self, sandbox: Sandbox) -> None:
        """A hundred concurrent executions all run, one at a time."""
        sandbox.run("counter = 0")
        with ThreadPoolExecutor(20) as threads:
            results = list(threads.map(sandbox.run, ["counter += 1; counter"] * 100))
        assert sorted(int(r.text or 0) for r in results) == list(range(1, 101))

    def test_exception_leaves_the_context_alive(self, sandbox: Sandbox) -> None:
        """The context keeps its state after an exception."""
        sandbox.run("kept = 5")
        assert sandbox.run("1/0").verdict is Verdict.EXCEPTION
        assert sandbox.run("kept").text == "5"

    def test_interrupt_stops_a_cell_and_keeps_state(self, sandbox: Sandbox) -> None:
        """An interrupt acts like Ctrl-C."""
        sandbox.run("kept = 6")
        started = threading.Event()

        def on_stdout(_text: str) -> None:
            started.set()

        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(
                sandbox.run,
                "print('go', flush=True)\nimport time\ntime.sleep(60)",
                on_stdout=on_stdout,
            )
            assert started.wait(10)
            sandbox.interrupt()
            assert running.result(10).verdict is Verdict.INTERRUPTED
        assert sandbox.run("kept").text == "6"

    def test_wall_limit_of_a_cell_keeps_state_if_it_stops(self, sandbox: Sandbox) -> None:
        """The cell is interrupted first; the notes report the fate of the state."""
        sandbox.run("kept = 7")
        execution = sandbox.run("import time; time.sleep(60)", timeout=0.3)
        assert execution.verdict is Verdict.WALL_TIME
        assert any("kept its state" in note for note in execution.outcome.notes)
        assert sandbox.run("kept").text == "7"

    def test_dead_context_is_replaced_and_says_so(self, sandbox: Sandbox) -> None:
        """The loss of the state is reported, never silent."""
        sandbox.run("lost = 1")
        execution = sandbox.run("import os; os._exit(3)")
        assert (execution.verdict, execution.exit_code) == (Verdict.NONZERO_EXIT, 3)
        execution = sandbox.run("'lost' in globals()")
        assert execution.text == "False"
        assert any("new one" in note for note in execution.outcome.notes)

    def test_process_that_a_cell_left_behind_goes_on_writing(self, sandbox: Sandbox) -> None:
        """Its output does not wait for a cell: a server's log would stop the server."""
        wrote = 400_000
        body = f"import sys; sys.stdout.write('x' * {wrote}); sys.stdout.flush(); open('end', 'x')"
        sandbox.run(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {body!r}])")
        waited = sandbox.commands.run("until [ -e end ]; do sleep 0.01; done", timeout=20)
        assert waited.outcome.verdict is Verdict.OK
        cell = sandbox.run("print('next')")
        assert cell.stdout.strip("x") == "next\n", "the next cell has the first of it"
        assert len(cell.stdout) + cell.outcome.truncated.stdout == wrote + len("next\n")

    def test_cell_reads_stdin(self, sandbox: Sandbox) -> None:
        """`input()` works where stdin was given."""
        assert sandbox.run("print(input() * 2)", stdin="ab\n").stdout == "abab\n"

    def test_other_language_runs_beside_the_context(self, sandbox: Sandbox) -> None:
        """A program of another language sees the context's files."""
        sandbox.files.write("data.txt", "from python")
        assert sandbox.run("cat data.txt", language="bash").stdout == "from python"

    # -- files -------------------------------------------------------------------------------

    def test_files_round_trip(self, sandbox: Sandbox) -> None:
        """Bytes, sizes, names, moves and removal are right."""
        content = os.urandom(3_000_000)
        sandbox.files.write("deep/er/blob.bin", content)
        assert sandbox.files.read_bytes("deep/er/blob.bin") == content
        assert sandbox.files.stat("deep/er/blob.bin").size == len(content)
        sandbox.files.move("deep/er/blob.bin", "deep/moved.bin")
        names = {entry.name: entry.type for entry in sandbox.files.list("deep")}
        assert names == {"er": "directory", "moved.bin": "file"}
        sandbox.files.remove("deep", recursive=True)
        assert not sandbox.files.exists("deep")

    def test_missing_file_says_so(self, sandbox: Sandbox) -> None:
        """The error has a reason, and the built-in class for code that knows local files only."""
        with pytest.raises(FileError) as caught:
            sandbox.files.read("missing.txt")
        assert caught.value.reason == "not_found"
        with pytest.raises(FileNotFoundError) as missing:
            sandbox.files.read("missing.txt")
        assert missing.value.errno == errno.ENOENT

    def test_directories_go_in_and_come_out(self, sandbox: Sandbox, tmp_path: Path) -> None:
        """Contents are the same; links are uploaded unchanged, and left out of a download."""
        local = tmp_path / "in"
        (local / "sub").mkdir(parents=True)
        (local / "sub" / "a.txt").write_text("a" * 100_000)
        (local / ("long" * 40 + ".txt")).write_text("long name")
        (local / "sub" / "python").symlink_to("/usr/bin/env")
        sandbox.files.upload_dir(local, "tree")
        linked = sandbox.commands.run("readlink tree/sub/python && tree/sub/python echo works")
        assert linked.stdout == "/usr/bin/env\nworks\n"
        sandbox.commands.run("ln -s /etc/passwd tree/link; mkfifo tree/fifo")
        sandbox.files.download_dir("tree", tmp_path / "out")
        found = {
            str(p.relative_to(tmp_path / "out")): p.read_text()
            for p in (tmp_path / "out").rglob("*")
            if p.is_file()
        }
        assert found == {"sub/a.txt": "a" * 100_000, "long" * 40 + ".txt": "long name"}

    def test_metadata_follows_a_file(self, subject: Subject) -> None:
        """What a file was given is shown under its next name, and not of a file in its place."""
        given = {"author": "me", "of": "x y"}
        with subject.sandbox() as sandbox:
            sandbox.files.write("meta/f", "x", metadata=given)
            sandbox.files.write("meta/none", "x")
            sandbox.files.move("meta/f", "meta/g")
            sandbox.commands.run("mv meta/g meta/h && echo more >> meta/h && echo x > meta/g")
            found = {entry.name: entry.metadata for entry in sandbox.files.list("meta")}
            assert found == {"h": given, "g": {}, "none": {}}
            sandbox.files.write("meta/h", "x")
            assert sandbox.files.stat("meta/h").metadata == {}

    # -- life --------------------------------------------------------------------------------

    def test_closed_sandbox_refuses_with_the_reason(self, subject: Subject) -> None:
        """A closed sandbox names the reason, and closing twice is fine."""
        sandbox = subject.sandbox()
        sandbox.close()
        sandbox.close()
        with pytest.raises(SandboxUnavailable, match="closed"):
            sandbox.run("1")

    def test_idle_sandbox_is_reaped(self, subject: Subject) -> None:
        """The sandbox ends after its idle time, without a call."""
        with subject.sandbox(limits={"idle_s": 1}) as sandbox:
            _wait_until(lambda: sandbox.status == "stopped")

    def test_closing_ends_a_running_execution_as_cancelled(self, subject: Subject) -> None:
        """The caller of the execution gets an answer."""
        sandbox = subject.sandbox()
        started = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(
                sandbox.run,
                "print('go', flush=True)\nimport time; time.sleep(60)",
                on_stdout=lambda _text: started.set(),
            )
            assert started.wait(10)
            sandbox.close()
            assert running.result(10).verdict is Verdict.CANCELLED

    def test_closed_engine_leaves_nothing(
        self, subject: Subject, make_engine: Callable[[], Engine]
    ) -> None:
        """No process and no descriptor of the engine is left."""
        subject.settle()  # the class's engine must not start or end sandboxes during the count
        before = len(os.listdir("/proc/self/fd"))
        ours = Subject(make_engine, self.runtime_name, self.isolation)
        ours.run("print(1)")
        with ours.sandbox() as sandbox:
            sandbox.run("x = 1")
        statistics = ours.runner.subject.statistics
        ours.close()
        assert statistics().runtimes[self.runtime_name].live == 0
        assert statistics().pool.parked == 0
        _wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def _wait_until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait for a state of the operating system that sends no event."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {within_s:g} s")
        time.sleep(0.02)


def _looked_for(marker: str) -> list[int]:
    """Return the processes of that name, waiting for them: they start just after their output."""
    deadline = time.monotonic() + 2.0
    while not (found := _processes_named(marker)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _processes_named(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if command.startswith(marker.encode()):
                found.append(int(entry.name))
    return found
