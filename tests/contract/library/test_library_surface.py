"""One library, embedded and over HTTP: every promise here is held by both.

The remote half talks to a real `cellwall serve` in a process of its own, on loopback, with a key.
"""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cellwall
from cellwall import embedded
from cellwall.model.errors import (
    CellwallError,
    Conflict,
    FileError,
    NotFound,
    PortError,
    SandboxUnavailable,
    UsageError,
)
from conftest import Require

if TYPE_CHECKING:
    from cellwall.model.execution import Event
    from cellwall.surface.sync.sandbox import SyncSandbox
    from kit.servers import Server

_NUMBERS: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    IsADirectoryError: errno.EISDIR,
    PermissionError: errno.EACCES,
    NotADirectoryError: errno.ENOTDIR,
    FileExistsError: errno.EEXIST,
}
Library = Any
"""The package itself, or a client: what they share is what is tested here."""


@pytest.fixture(scope="module", autouse=True)
def _no_engine_stays() -> Iterator[None]:
    """End the process's own engine: tests after these fork, and count descriptors."""
    yield
    embedded._default.close()


@pytest.fixture(scope="module")
def remote(server: Server) -> Iterator[Library]:
    from kit.servers import ALICE

    with cellwall.connect(server.address, ALICE) as client:
        yield client


@pytest.fixture(scope="module", params=["embedded", "remote"])
def library(request: pytest.FixtureRequest, require: Require) -> Library:
    try:
        cellwall.run("0")
    except cellwall.HostUnsupported as error:
        require("sandboxes", False, str(error))
    return cellwall if request.param == "embedded" else request.getfixturevalue("remote")


@pytest.fixture(scope="module")
def shared(library: Library) -> Iterator[SyncSandbox]:
    """Give a sandbox for tests that leave nothing behind that matters to others."""
    with library.Sandbox() as made:
        yield made


@pytest.fixture
def sandbox(library: Library) -> Iterator[SyncSandbox]:
    with library.Sandbox() as made:
        yield made


# -- one program -------------------------------------------------------------------------------


def test_run_gives_output_and_outcome(library: Library) -> None:
    execution = library.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert isinstance(execution, cellwall.Execution)
    assert (execution.stdout, execution.stderr, execution.exit_code) == ("out\n", "err\n", 3)
    assert execution.verdict is cellwall.Verdict.NONZERO_EXIT
    assert execution.outcome.isolation.level is cellwall.IsolationLevel.NAMESPACE
    assert execution.outcome.usage.wall_s > 0
    assert (execution.template, execution.language) == ("python", "python")
    assert execution.id
    assert execution.sandbox_id
    assert abs(execution.started_at - time.time()) < 60


@pytest.mark.parametrize("stdin", ["3\n4\n", b"3\n4\n"])
def test_stdin_is_text_or_bytes(library: Library, stdin: str | bytes) -> None:
    code = "import sys; print(sum(map(int, sys.stdin)))"
    assert library.run(code, stdin=stdin).stdout == "7\n"


def test_stdin_that_is_no_text_arrives_as_it_is(library: Library) -> None:
    data = bytes(range(256))
    code = "import sys; print(sys.stdin.buffer.read() == bytes(range(256)))"
    assert library.run(code, stdin=data).stdout == "True\n"
    assert library.run(code, stdin=data.decode("utf-8", "surrogateescape")).stdout == "True\n"


def test_arguments_go_in_and_a_result_comes_out(library: Library) -> None:
    code = "def main(n, name):\n    return {'n': n * 2, 'name': name[::-1], 'none': None}"
    execution = library.run(code, arguments={"n": 21, "name": "añb"})
    assert execution.result == {"n": 42, "name": "bña", "none": None}


def test_main_is_called_whatever_an_example_left(library: Library) -> None:
    code = "def main(n):\n    return n\nresult = main(1)"
    assert library.run(code, arguments={"n": 5}).result == 5


@pytest.mark.parametrize(
    ("code", "is_told"),
    [
        ("def solve(n):\n    return n", True),
        ("if __name__ == '__main__': print(1)", True),
        ("print(arguments)", False),
        ("def main(n): pass", False),
    ],
)
def test_arguments_that_reach_nothing_are_noted(library: Library, code: str, is_told: bool) -> None:
    notes = library.run(code, arguments={"n": 1}).outcome.notes
    assert any("no function main" in note for note in notes) is is_told
    assert library.run(code, arguments={}).outcome.notes == ()


def test_a_bash_program_reads_arguments_by_their_names(library: Library) -> None:
    run = partial(library.run, language="bash", arguments={"name": "Ada"})
    assert run('echo "$name"').outcome.notes == ()
    assert len(run("echo nothing").outcome.notes) == 1


def test_a_program_has_a_file_and_own_modules(library: Library) -> None:
    code = "import token\nprint(open(__file__).read() != '', __file__, token.X)"
    execution = library.run(code, files={"token.py": "X = 'mine'"})
    assert execution.stdout == "True /home/user/main.py mine\n"
    assert library.run("print(open(__file__).read())").stdout == "print(open(__file__).read())\n"


def test_input_keeps_its_line_ends(library: Library) -> None:
    given, seen = "a\r\nb\rc", "'a\\r\\nb\\rc'\n"
    assert library.run("import sys; print(ascii(sys.stdin.read()))", stdin=given).stdout == seen


def test_files_go_in_and_come_out(library: Library) -> None:
    execution = library.run(
        "data = open('in/a.bin', 'rb').read() + open('b.txt', 'rb').read()\n"
        "open('out.bin', 'wb').write(data[::-1])",
        files={"in/a.bin": b"\xff\x00", "b.txt": "ü"},
        collect=["out.bin"],
    )
    assert execution.files == {"out.bin": b"\xbc\xc3\x00\xff"}


def test_words_environment_and_language(library: Library) -> None:
    execution = library.run(
        'echo "$1 $NAME"', language="bash", args=["one"], env={"NAME": "Ada Lovelace"}
    )
    assert (execution.stdout, execution.language) == ("one Ada Lovelace\n", "bash")


@pytest.mark.parametrize("code", ["", "  \n"])
def test_empty_program_and_cell_end_well(library: Library, shared: SyncSandbox, code: str) -> None:
    assert library.run(code).ok
    assert shared.run(code).ok


def test_time_limit_is_a_verdict(library: Library) -> None:
    execution = library.run("print('on', flush=True)\nwhile True: pass", timeout=0.5)
    assert execution.verdict is cellwall.Verdict.WALL_TIME
    assert execution.stdout == "on\n"
    assert execution.outcome.notes


@pytest.mark.cgroups
@pytest.mark.parametrize("limits", [{"memory_mb": 128}, cellwall.Limits(memory_mb=128)])
def test_limits_hold_and_are_told(library: Library, limits: Any) -> None:
    execution = library.run("x = bytearray(400 << 20)", limits=limits)
    assert execution.limits.memory_mb == 128
    assert execution.verdict is cellwall.Verdict.MEMORY


def test_timeout_wins_over_the_limit_of_that_name(library: Library) -> None:
    assert library.run("0", timeout=7, limits={"wall_s": 5}).limits.wall_s == 7


def test_exception_comes_apart(library: Library) -> None:
    execution = library.run("raise ValueError('no good')")
    assert execution.verdict is cellwall.Verdict.EXCEPTION
    assert (execution.error.name, execution.error.value) == ("ValueError", "no good")
    assert "ValueError: no good" in execution.error.traceback


def test_output_above_the_limit_is_cut_and_counted(library: Library) -> None:
    execution = library.run("print('x' * 5000)", limits={"output_kb": 1})
    assert (len(execution.stdout), execution.outcome.truncated.stdout) == (1024, 3977)


def test_events_come_numbered_and_end_with_the_outcome(library: Library) -> None:
    events: list[Event] = []
    code = "import sys\nprint('a', flush=True)\nsys.stderr.write('b')\nresult = [1]"
    execution = library.run(code, on_event=events.append)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert "".join(e.text or "" for e in events if e.kind == "stdout") == execution.stdout == "a\n"
    assert [event.value for event in events if event.kind == "value"] == [[1]]
    assert events[-1].kind == "end"
    assert events[-1].outcome == execution.outcome


def test_failing_callback_ends_the_run(library: Library) -> None:
    def fail(event: Event) -> None:
        raise KeyError(event.text)

    began = time.monotonic()
    with pytest.raises(KeyError):
        library.run("print('up', flush=True)\nimport time; time.sleep(50)", on_event=fail)
    assert time.monotonic() - began < 20


# -- sessions ----------------------------------------------------------------------------------


def test_session_keeps_its_state(shared: SyncSandbox) -> None:
    shared.run("x = 20")
    execution = shared.run("x + 22")
    assert execution.text == "42"
    assert execution.sandbox_id == shared.id


def test_sandbox_knows_its_facts(library: Library) -> None:
    with library.Sandbox("python", {"memory_mb": 200, "life_s": 100}) as sandbox:
        assert (sandbox.status, sandbox.template) == ("running", "python")
        assert sandbox.limits.memory_mb == 200
        assert sandbox.isolation.runtime == "jail"
        assert abs(sandbox.created_at - time.time()) < 30
        assert 50 < sandbox.ends_at - time.time() <= 101
        sandbox.extend(500)
        assert 400 < sandbox.ends_at - time.time() <= 501


def test_display_results_and_images(shared: SyncSandbox) -> None:
    code = (
        "class Picture:\n"
        "    def _repr_png_(self):\n"
        "        return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20)\n"
        "display(Picture())\n"
        "'last'"
    )
    events: list[Event] = []
    execution = shared.run(code, on_event=events.append)
    assert len(execution.images) == 1
    assert execution.text == "'last'"
    kinds = [event.kind for event in events]
    assert (kinds.count("display"), kinds.count("result")) == (1, 1)
    assert [event.data for event in events if event.data] == list(execution.results)


def test_text_callbacks_get_their_stream(shared: SyncSandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    code = "import sys; print('o'); print('e', file=sys.stderr)"
    shared.run(code, on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err)) == ("o\n", "e\n")


def test_stream_yields_events_while_it_runs(shared: SyncSandbox) -> None:
    events = shared.stream("print('first', flush=True)\nimport time; time.sleep(1)\n7")
    first = next(events)
    began = time.monotonic()
    assert first.text == "first\n"
    assert [event.kind for event in events] == ["result", "end"]
    assert time.monotonic() - began > 0.5


def test_leaving_a_stream_early_stops_the_cell(shared: SyncSandbox) -> None:
    shared.run("kept = 1")
    stream = shared.stream("print('up', flush=True)\nwhile True: pass")
    assert next(stream).text == "up\n"
    stream.close()
    began = time.monotonic()
    assert shared.run("kept").text == "1"
    assert time.monotonic() - began < 15


def test_what_a_model_is_not_told_stays_in_a_file_inside(shared: SyncSandbox) -> None:
    execution = shared.run("for n in range(20_000): print('line', n)")
    said = shared.for_model(execution, 4_000)
    assert len(said) <= 4_000
    path = said.partition("all of it is in ")[2].partition(" ...]")[0]
    assert path.startswith("/home/user/.cellwall/output/")
    assert shared.files.read(path) == execution.stdout.strip("\n")
    result = shared.commands.run("seq 20000")
    assert "all of it is in /home/user/" in shared.for_model(result, 4_000)


def test_a_sandbox_that_has_ended_keeps_nothing(sandbox: SyncSandbox) -> None:
    execution = sandbox.run("print('x' * 20_000)")
    sandbox.close()
    said = sandbox.for_model(execution, 4_000)
    assert "left out here ...]" in said


def test_program_of_another_language_runs_beside(shared: SyncSandbox) -> None:
    shared.files.write("beside.txt", "here")
    assert shared.run("cat beside.txt", "bash").stdout == "here"


def test_contexts_are_apart(sandbox: SyncSandbox) -> None:
    sandbox.run("x = 1")
    other = sandbox.contexts.create("other")
    assert (other, other.language) == ("other", "python")
    assert sorted(sandbox.contexts.list()) == ["other", "python"]
    assert sandbox.run("'x' in globals()", context="other").text == "False"
    sandbox.run("x = 2", context=other)
    sandbox.contexts.restart()
    assert sandbox.run("'x' in globals()").text == "False"
    assert sandbox.run("x", context="other").text == "2"
    sandbox.contexts.close("other")
    assert sandbox.contexts.list() == ["python"]
    with pytest.raises(NotFound, match="other"):
        sandbox.run("1", context="other")


@pytest.mark.parametrize("name", ["python", "main"])
def test_default_context_is_called_as_its_language_or_main(sandbox: SyncSandbox, name: str) -> None:
    sandbox.run("x = 1")
    assert sandbox.run("x", context=name).text == "1"
    sandbox.contexts.restart(name)
    assert sandbox.run("'x' in globals()", language="python").text == "False"
    with pytest.raises(Conflict):
        sandbox.contexts.create(name)
    sandbox.contexts.close(name)
    assert sandbox.contexts.list() == []
    assert sandbox.contexts.create(name) == "python"
    assert sandbox.run("1 + 1").text == "2"


@pytest.mark.parametrize("name", ["python", "main"])
def test_default_context_is_interrupted_by_either_name(sandbox: SyncSandbox, name: str) -> None:
    def on_event(event: Event) -> None:
        if event.text == "up\n":
            threading.Thread(target=sandbox.interrupt, args=(name,)).start()

    execution = sandbox.run("print('up', flush=True)\nwhile True: pass", on_event=on_event)
    assert execution.verdict is cellwall.Verdict.INTERRUPTED


def test_cell_that_exits_says_with_what_and_keeps_the_state(shared: SyncSandbox) -> None:
    execution = shared.run("kept = 7\nimport sys; sys.exit(3)")
    assert (execution.verdict, execution.exit_code) == (cellwall.Verdict.NONZERO_EXIT, 3)
    assert "exit status 3" in execution.for_model()
    assert shared.run("sys.exit('a word')").exit_code == 1
    for good in ("sys.exit()", "sys.exit(0)", "exit()"):
        assert shared.run(good).ok
    assert shared.run("kept").text == "7"


def test_interrupt_stops_the_cell_and_keeps_the_state(sandbox: SyncSandbox) -> None:
    sandbox.run("kept = 5")

    def on_event(event: Event) -> None:
        if event.text == "up\n":
            threading.Thread(target=sandbox.interrupt).start()

    execution = sandbox.run("print('up', flush=True)\nwhile True: pass", on_event=on_event)
    assert execution.verdict is cellwall.Verdict.INTERRUPTED
    assert execution.error is not None
    assert execution.error.name == "KeyboardInterrupt"
    assert sandbox.run("kept").text == "5"


def test_cell_at_its_time_limit_keeps_the_state(sandbox: SyncSandbox) -> None:
    sandbox.run("kept = 6")
    assert sandbox.run("while True: pass", timeout=0.4).verdict is cellwall.Verdict.WALL_TIME
    assert sandbox.run("kept").text == "6"


def test_closed_sandbox_says_so(library: Library) -> None:
    sandbox = library.Sandbox()
    sandbox.close()
    sandbox.close()
    assert sandbox.status == "stopped"
    calls: tuple[Callable[[], object], ...] = (
        lambda: sandbox.run("1"),
        lambda: sandbox.files.read("x"),
        lambda: sandbox.commands.run("true"),
        lambda: sandbox.contexts.create("x"),
        lambda: sandbox.extend(5),
        lambda: sandbox.ports.connect(80),
    )
    for call in calls:
        with pytest.raises(SandboxUnavailable, match="it was closed"):
            call()


def test_life_ends_by_itself(library: Library) -> None:
    sandbox = library.Sandbox(limits={"life_s": 1})
    deadline = time.monotonic() + 20
    while sandbox.status == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(SandboxUnavailable, match="life"):
        sandbox.run("1")


@pytest.mark.cgroups
def test_memory_kill_ends_the_context_alone(library: Library) -> None:
    with library.Sandbox(limits={"memory_mb": 64}) as sandbox:
        sandbox.files.write("kept.txt", "kept")
        ended = sandbox.run("x = bytearray(300 << 20)")
        assert ended.verdict is cellwall.Verdict.MEMORY
        assert "state is lost" in " ".join(ended.outcome.notes)
        assert sandbox.status == "running"
        after = sandbox.run("open('kept.txt').read()")
        assert after.text == "'kept'"
        assert "new one" in " ".join(after.outcome.notes)


# -- commands ----------------------------------------------------------------------------------


def test_command_in_the_foreground(shared: SyncSandbox) -> None:
    out: list[str] = []
    result = shared.commands.run(
        'cat; echo "$A in ${PWD##*/}"; echo no >&2; exit 4',
        stdin="fed ",
        cwd="/tmp",
        env={"A": "b"},
        on_stdout=out.append,
    )
    assert isinstance(result, cellwall.CommandResult)
    assert (result.stdout, result.stderr, result.exit_code) == ("fed b in tmp\n", "no\n", 4)
    assert ("".join(out), result.ok) == (result.stdout, False)


def test_command_as_a_list_is_no_shell_line(shared: SyncSandbox) -> None:
    assert shared.commands.run(["echo", "$HOME;", "a b"]).stdout == "$HOME; a b\n"


def test_command_at_its_time_limit(shared: SyncSandbox) -> None:
    result = shared.commands.run(["sleep", "50"], timeout=0.4)
    assert result.outcome.verdict is cellwall.Verdict.WALL_TIME


def test_command_in_the_background_is_fed_and_waited_for(shared: SyncSandbox) -> None:
    seen: list[str] = []
    command = shared.commands.start(["cat"], on_stdout=seen.append)
    assert command.is_running
    assert command.pid
    assert command.id in [each.id for each in shared.commands.list()]
    command.send_stdin("one ")
    shared.commands.send_stdin(command.id, b"two")
    command.close_stdin()
    assert command.wait().stdout == "one two" == "".join(seen)
    assert not bool(command.is_running)
    assert command.id not in [each.id for each in shared.commands.list()]


def test_command_is_found_again_by_its_id_and_killed(shared: SyncSandbox) -> None:
    command = shared.commands.start(["sleep", "100"])
    found = shared.commands.get(command.id)
    found.kill(15)
    result = command.wait()
    assert result.outcome.signal == 15
    assert found.wait() == result
    other = shared.commands.start(["sleep", "100"])
    shared.commands.kill(other.id)
    assert other.wait().outcome.signal == 9


def test_program_that_is_not_there(shared: SyncSandbox) -> None:
    with pytest.raises(NotFound, match="no-such-program"):
        shared.commands.run(["no-such-program"])
    with pytest.raises(NotFound, match="no-such-program"):
        shared.commands.start(["no-such-program"])


def test_merged_output_of_a_command_keeps_its_order(shared: SyncSandbox) -> None:
    script = "for n in 1 2 3; do echo $n; echo -$n >&2; done"
    told: list[str] = []
    merged = shared.commands.run(script, merge_stderr=True, on_event=lambda e: told.append(e.kind))
    assert (merged.stdout, merged.stderr) == ("1\n-1\n2\n-2\n3\n-3\n", "")
    assert set(told) == {"stdout", "end"}
    command = shared.commands.start(script, merge_stderr=True)
    assert command.wait().stdout == merged.stdout


def test_command_longer_than_an_argument_runs(shared: SyncSandbox) -> None:
    text = "ä" * 300_000
    result = shared.commands.run(f"cat <<'END' | wc -m\n{text}\nEND\n")
    assert (result.stdout.strip(), result.stderr) == ("300001", "")
    with pytest.raises(UsageError, match="16777216"):
        shared.commands.run("#" * (16 * 1024 * 1024 + 1))


def test_every_end_has_a_status_as_shells_have_it(shared: SyncSandbox, library: Library) -> None:
    assert shared.commands.run("exit 3").status == 3
    assert shared.commands.run("kill -TERM $$").status == 143
    assert shared.commands.run("sleep 9", timeout=0.3).status == 124
    assert library.run("import os; os.abort()").status == 134
    assert library.run("1/0").status == 1
    assert library.run("x = bytearray(10**9)", limits={"memory_mb": 64}).status in {1, 137}


def test_limits_for_agents_go_in_and_are_told(library: Library) -> None:
    limits = cellwall.Limits.agent(memory_mb=256)
    with library.Sandbox(limits=limits) as sandbox:
        found = sandbox.limits
    assert (found.memory_mb, found.disk_mb) == (256, cellwall.Limits().disk_mb)
    assert found.wall_s > cellwall.Limits().wall_s
    if library is cellwall:
        assert (found.wall_s, found.cpu_s, found.idle_s, found.life_s) == (3600, 3600, 86400, 86400)


# -- files -------------------------------------------------------------------------------------


def test_files_are_written_and_read(shared: SyncSandbox) -> None:
    assert shared.files.write("d/e.txt", "grün\n", mode=0o750) == 6
    shared.files.append("d/e.txt", b"\xffend")
    assert shared.files.read("d/e.txt") == "grün\n\ufffdend"
    assert shared.files.read("d/e.txt", text=False) == "grün\n".encode() + b"\xffend"
    assert shared.files.read_bytes("d/e.txt").endswith(b"\xffend")
    entry = shared.files.stat("d/e.txt")
    assert isinstance(entry, cellwall.FileEntry)
    assert (entry.name, entry.type, entry.size, entry.mode & 0o777) == ("e.txt", "file", 10, 0o750)
    shared.files.move("d/e.txt", "d/f.txt")
    shared.files.mkdir("d/g/h")
    assert sorted(entry.path for entry in shared.files.list("d", depth=2)) == sorted(
        entry.path for entry in shared.files.list("d", depth=9)
    )
    assert {entry.name for entry in shared.files.list("d")} == {"f.txt", "g"}
    shared.files.remove("d", recursive=True)
    assert not shared.files.exists("d")


def test_empty_file_is_a_file(shared: SyncSandbox) -> None:
    assert shared.files.write("empty", b"") == 0
    assert shared.files.read_bytes("empty") == b""


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda files: files.read("nothing-here"), "not_found"),
        (lambda files: files.read("/"), "is_directory"),
        (lambda files: files.write("/etc/passwd", "x"), "permission"),
        (lambda files: files.list("nothing-here"), "not_found"),
        (lambda files: files.mkdir("/tmp", parents=False), "exists"),
    ],
)
def test_file_errors_have_reasons(
    shared: SyncSandbox, work: Callable[[Any], object], reason: str
) -> None:
    with pytest.raises(FileError) as refused:
        work(shared.files)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (lambda files: files.read("nothing-here"), FileNotFoundError),
        (lambda files: files.read("/"), IsADirectoryError),
        (lambda files: files.write("/etc/passwd", "x"), PermissionError),
        (lambda files: files.list("/etc/passwd"), NotADirectoryError),
        (lambda files: files.mkdir("/tmp", parents=False), FileExistsError),
    ],
)
def test_file_errors_are_the_built_in_ones_too(
    shared: SyncSandbox, work: Callable[[Any], object], kind: type[OSError]
) -> None:
    with pytest.raises(kind) as refused:
        work(shared.files)
    assert isinstance(refused.value, FileError)
    assert refused.value.errno == _NUMBERS[kind]


def test_large_file_goes_up_and_down_with_progress(shared: SyncSandbox, tmp_path: Path) -> None:
    data = bytes(range(256)) * 16 * 1024  # 4 MiB
    (tmp_path / "up.bin").write_bytes(data)
    up: list[tuple[int, int | None]] = []
    down: list[tuple[int, int | None]] = []
    size = shared.files.upload(
        tmp_path / "up.bin", "big.bin", on_progress=lambda *at: up.append(at)
    )
    assert size == len(data)
    got = shared.files.download(
        "big.bin", tmp_path / "down.bin", on_progress=lambda *at: down.append(at)
    )
    assert got == len(data)
    assert (tmp_path / "down.bin").read_bytes() == data
    for steps in (up, down):
        assert steps[-1] == (len(data), len(data))
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert len(steps) > 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["down.bin", "up.bin"]


def test_directory_goes_in_and_out(shared: SyncSandbox, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "ü.txt").write_text("u")
    (tree / "run.sh").write_text("echo ran")
    (tree / "run.sh").chmod(0o755)
    steps: list[int] = []
    assert shared.files.upload_dir(tree, "up", on_progress=lambda done, _: steps.append(done)) > 0
    assert steps
    assert shared.commands.run("up/run.sh").stdout == "ran\n"
    assert shared.files.download_dir("up", tmp_path / "back") == 2
    assert (tmp_path / "back" / "sub" / "ü.txt").read_text() == "u"
    with pytest.raises(Conflict, match="not empty"):
        shared.files.download_dir("up", tmp_path / "back")
    with pytest.raises(UsageError, match="not a directory"):
        shared.files.upload_dir(tmp_path / "nothing")


def test_changes_are_seen(shared: SyncSandbox) -> None:
    shared.files.mkdir("watched")
    with shared.files.watch("watched") as watch:
        shared.files.write("watched/a.txt", "1")
        change = next(watch)
        assert isinstance(change, cellwall.Change)
        assert change.kind == "created"
    with pytest.raises(StopIteration):
        next(watch)


def test_watch_ends_with_its_directory(shared: SyncSandbox) -> None:
    shared.files.mkdir("gone")
    with shared.files.watch("gone") as watch:
        shared.files.remove("gone")
        assert [(change.kind, change.path) for change in watch] == [("removed", ".")]


def test_watch_of_nothing_is_an_error(shared: SyncSandbox) -> None:
    with pytest.raises(FileError) as refused:
        shared.files.watch("nothing-here")
    assert refused.value.reason == "not_found"


# -- terminals and ports -----------------------------------------------------------------------


def read_until(terminal: Any, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        data = terminal.read()
        assert data, found
        found += data
    return found


def test_terminal_is_one(shared: SyncSandbox) -> None:
    # Not bash: its readline reads the size and sets what it read, over a resize in between.
    terminal = shared.commands.start(["sh"], pty=(24, 80), env={"NAME": "a b"})
    terminal.resize(40, 120)
    terminal.write('stty size; echo "<$NAME>"; exit 3\n')
    shown = b"".join(terminal)
    assert b"40 120" in shown
    assert b"<a b>" in shown
    assert terminal.wait().exit_code == 3
    assert terminal.read() == b""
    terminal.write("ignored")


def test_terminal_carries_any_byte_both_ways(shared: SyncSandbox) -> None:
    code = "import os,tty; tty.setraw(0); os.write(1, b'!'); os.write(1, os.read(0, 4)[::-1])"
    terminal = shared.commands.start(["python3", "-c", code], pty=(24, 80))
    read_until(terminal, b"!")
    terminal.write(b"\xff\x00\x03\r")
    assert b"".join(terminal) == b"\r\x03\x00\xff"


def test_terminal_at_its_time_limit_and_closed(shared: SyncSandbox) -> None:
    terminal = shared.commands.start(["sleep", "50"], pty=(24, 80), timeout=0.5)
    assert terminal.wait().outcome.verdict is cellwall.Verdict.WALL_TIME
    other = shared.commands.start(["sleep", "50"], pty=(24, 80))
    other.close()
    assert other.wait().outcome.signal == 9


ECHO = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", 7000))
print("ready", flush=True)
def serve(line):
    while data := line.recv(65536):
        line.sendall(data[::-1] if data == b"turn" else data)
    line.sendall(b"bye")
    line.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()
"""


@pytest.fixture(scope="module")
def echo(library: Library) -> Iterator[SyncSandbox]:
    """Give a sandbox with a server inside that sends back what it gets, and says bye."""
    with library.Sandbox() as made:
        ready = threading.Event()
        made.commands.start(["python3", "-c", ECHO], on_stdout=lambda _: ready.set())
        assert ready.wait(20)
        yield made


def test_listening_ports_are_listed(echo: SyncSandbox) -> None:
    assert [(found.port, found.address) for found in echo.ports.list()] == [(7000, "127.0.0.1")]


def test_connection_carries_bytes_and_both_ends(echo: SyncSandbox) -> None:
    with echo.ports.connect(7000) as line:
        line.sendall(b"turn")
        assert line.recv() == b"nrut"
        line.shutdown()
        assert b"".join(line) == b"bye"
    with pytest.raises(PortError) as refused:
        line.recv()
    assert refused.value.reason == "closed"


def test_much_passes_a_connection_unchanged(echo: SyncSandbox) -> None:
    data = bytes(range(256)) * 8192  # 2 MiB
    with echo.ports.connect(7000) as line:

        def send() -> None:
            line.sendall(data)
            line.shutdown()

        writer = threading.Thread(target=send)
        writer.start()
        assert b"".join(line) == data + b"bye"
        writer.join()


def test_nobody_listens_there(echo: SyncSandbox) -> None:
    with pytest.raises(PortError) as refused:
        echo.ports.connect(9)
    assert refused.value.reason == "refused"
    assert refused.value.remedy
    with pytest.raises(UsageError, match="70000"):
        echo.ports.connect(70_000)


def test_forwarded_port_reaches_a_server_inside(sandbox: SyncSandbox) -> None:
    sandbox.files.write("site/index.html", "<h1>inside</h1>")
    sandbox.commands.start("python3 -m http.server --bind 127.0.0.1 --directory site 8000")
    while 8000 not in [found.port for found in sandbox.ports.list()]:
        time.sleep(0.05)
    with sandbox.ports.forward(8000) as forward:
        assert forward.address == ("127.0.0.1", forward.port)
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/") as answer:
                assert answer.read() == b"<h1>inside</h1>"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/", timeout=5)


# -- asyncio -----------------------------------------------------------------------------------


async def read_on(watch: Any) -> None:
    async with asyncio.timeout(0.3):
        while True:
            await anext(watch)


def test_asynchronous_half_does_the_same(library: Library, server: Server) -> None:
    from kit.servers import ALICE

    async def work(asynchronous: Any) -> None:
        answers = await asyncio.gather(*(asynchronous.arun(f"print({n})") for n in range(5)))
        assert [answer.stdout for answer in answers] == [f"{n}\n" for n in range(5)]
        async with asynchronous.AsyncSandbox.create(limits={"memory_mb": 200}) as sandbox:
            kinds = [event.kind async for event in sandbox.stream("print(1); 2")]
            assert kinds == ["stdout", "result", "end"]
            async with sandbox.files.watch() as watch:
                await sandbox.files.write("x", "1")
                assert (await anext(watch)).path == "x"
                with pytest.raises(TimeoutError):  # a wait that was given up costs no change
                    await read_on(watch)
                await sandbox.files.mkdir("y")
                assert (await anext(watch)).path == "y"
            command = await sandbox.commands.start("read a; echo got $a")
            await command.send_stdin("it\n")
            assert (await command.wait()).stdout == "got it\n"
        assert sandbox.status == "stopped"
        made = await asynchronous.AsyncSandbox.create()
        await made.close()

    async def main() -> None:
        if library is cellwall:
            await work(cellwall)
        else:
            async with await cellwall.aconnect(server.address, ALICE) as client:
                await work(client)

    asyncio.run(main())


def test_cancelled_run_ends(library: Library, server: Server) -> None:
    from kit.servers import ALICE

    async def work(asynchronous: Any) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asynchronous.arun("import time; time.sleep(50)")

    async def main() -> None:
        if library is cellwall:
            await work(cellwall)
        else:
            async with await cellwall.aconnect(server.address, ALICE) as client:
                await work(client)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 20


_MANY = """
import asyncio, cellwall
async def main():
    await asyncio.gather(*(cellwall.arun(f"print({i})") for i in range(20)))
asyncio.run(main())
"""


def test_many_at_once_end_without_a_word() -> None:
    """Refills are under way when the loop ends: nobody hears of that."""
    done = subprocess.run(
        [sys.executable, "-c", _MANY], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- mistakes ----------------------------------------------------------------------------------

MISTAKES: dict[str, Callable[[Library], object]] = {
    "template": lambda it: it.run("1", template="no-such-template"),
    "language": lambda it: it.run("1", language="cobol"),
    "level": lambda it: it.run("1", isolation="vm"),
    "not text": lambda it: it.run(5),
    "limit": lambda it: it.run("1", limits={"memory": 5}),
    "bound": lambda it: it.run("1", limits={"memory_mb": 1}),
    "arguments": lambda it: it.run("1", arguments={"x": object()}),
    "stdin": lambda it: it.run("1", stdin=5),
    "files": lambda it: it.run("1", files={"a": 5}),
    "leads out": lambda it: it.run("1", files={"../a": "5"}),
    "collect": lambda it: it.run("1", collect=["/etc/passwd"]),
    "words": lambda it: it.run("1", args="abc"),
    "surrogate in stdin": lambda it: it.run("1", stdin="\ud800"),
    "surrogate in a file": lambda it: it.run("1", files={"a": "\ud800"}),
    "surrogate in args": lambda it: it.run("1", args=["\ud800"]),
    "surrogate in env": lambda it: it.run("1", env={"A": "\ud800"}),
    "surrogate in a name": lambda it: it.run("1", files={"\ud800": "1"}),
    "start": lambda it: it.Sandbox("no-such-template"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_the_same_error_with_the_same_words(remote: Library, mistake: str) -> None:
    found = []
    for library in (cellwall, remote):
        with pytest.raises(CellwallError) as refused:
            MISTAKES[mistake](library)
        error = refused.value
        found.append((type(error), error.message, error.remedy))
    assert found[0] == found[1]


SESSION_MISTAKES: dict[str, Callable[[SyncSandbox], object]] = {
    "context": lambda sandbox: sandbox.run("1", context="none"),
    "context twice": lambda sandbox: sandbox.contexts.create("main"),
    "context name": lambda sandbox: sandbox.contexts.create(""),
    "context above": lambda sandbox: sandbox.contexts.create("..", "bash"),
    "context here": lambda sandbox: sandbox.contexts.create("."),
    "context below": lambda sandbox: sandbox.contexts.create("a/b"),
    "context surrogate": lambda sandbox: sandbox.contexts.create("\ud800"),
    "command": lambda sandbox: sandbox.commands.run([]),
    "surrogate in a command": lambda sandbox: sandbox.commands.run("echo \ud800"),
    "surrogate in an argument": lambda sandbox: sandbox.commands.run(["echo", "\ud800"]),
    "surrogate in content": lambda sandbox: sandbox.files.write("a", "\ud800"),
    "program": lambda sandbox: sandbox.commands.run(["no-such-program"]),
    "path": lambda sandbox: sandbox.files.read("a\0b"),
    "no file": lambda sandbox: sandbox.files.stat("none"),
    "size": lambda sandbox: sandbox.commands.start("sh", pty=(0, 80)),
    "port": lambda sandbox: sandbox.ports.connect(0),
    "local": lambda sandbox: sandbox.files.upload("/nothing/here", "x"),
}


@pytest.mark.parametrize("mistake", SESSION_MISTAKES)
def test_mistake_in_a_session_is_the_same_error(remote: Library, mistake: str) -> None:
    found = []
    for library in (cellwall, remote):
        with library.Sandbox() as sandbox, pytest.raises(CellwallError) as refused:
            SESSION_MISTAKES[mistake](sandbox)
        error = refused.value
        found.append((type(error), error.message.replace(sandbox.id, "ID")))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["..", ".", "../..", "", "a/../.."])
def test_text_of_the_callers_reaches_nothing_above(remote: Library, name: str) -> None:
    """What the SDK puts into paths: an HTTP client takes dots out, however they are quoted."""
    asked: tuple[Callable[[SyncSandbox], object], ...] = (
        lambda sandbox: sandbox.contexts.close(name),
        lambda sandbox: sandbox.contexts.restart(name),
        lambda sandbox: sandbox.interrupt(name),
        lambda sandbox: sandbox.commands.kill(name),
        lambda _: remote.attach(name),
        lambda _: remote.execution(name).cancel(),
    )
    with remote.Sandbox() as sandbox:
        for ask in asked:
            with pytest.raises((UsageError, NotFound)):
                ask(sandbox)
        assert sandbox.status == "running"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"env": {"A": "\ud800"}}, "env: the value of A"),
        ({"env": {"\ud800": "A"}}, "env: the name"),
        ({"files": {"\ud800": "x"}}, "files: "),
        ({"collect": ["\ud800"]}, "collect: "),
        ({"language": None}, "language: NoneType"),
    ],
)
def test_what_is_no_text_is_named_before_anything_starts(
    options: dict[str, Any], named: str
) -> None:
    """Control: what stands for bytes is passed on."""
    with pytest.raises(UsageError, match=named):
        cellwall.run("1", **options)
    assert cellwall.run("import sys; sys.argv[1]", args=["\udcff"]).ok


def test_option_that_is_none_is_refused(library: Library) -> None:
    with pytest.raises(TypeError):
        library.run("1", no_such_option=1)
