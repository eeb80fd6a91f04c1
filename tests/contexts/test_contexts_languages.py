"""Contexts in other languages keep the promises of a context, each on the jail."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellwall.embedded import Runner, Sandbox
from cellwall.engine.engine import Engine
from cellwall.engine.templates.store import state_dir
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from cellwall.model.errors import Conflict, UsageError
from cellwall.model.execution import Execution
from cellwall.model.outcome import Verdict
from conftest import Require
from kit.languages.spoken import JAVASCRIPT, SPOKEN, TEXT, Spoken

pytestmark = pytest.mark.timeout(180)
_LIMITS: dict[str, Any] = {"memory_mb": 3072, "processes": 400, "wall_s": 60, "cpu_s": 120}
_JUNK = """
context=$$ parent=$PPID
while ((parent != 1)); do
    context=$parent
    read -r _ _ _ parent _ < /proc/$context/stat
done
for each in /proc/$context/fd/*; do
    [[ $(readlink $each) == pipe:* && $each != */[012] ]] && echo junk > $each && echo x >> tried
done
"""


def the(attribute: str) -> pytest.MarkDecorator:
    """Those languages that can say `attribute` at all."""
    able = [each for each in SPOKEN if getattr(each, attribute)]
    return pytest.mark.parametrize("spoken", able, ids=lambda each: each.language)


each_language = pytest.mark.parametrize("spoken", SPOKEN, ids=lambda each: each.language)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner(lambda: Engine(state_dir()))
    yield made
    made.close()


@pytest.fixture(scope="module")
def sandboxes(runner: Runner) -> Iterator[Callable[[str], Sandbox]]:
    """One living sandbox of each template, in which all languages of it are."""
    made: dict[str, Sandbox] = {}

    def of(template: str) -> Sandbox:
        if template not in made or made[template].status != "running":
            made[template] = Sandbox(template, _LIMITS, runner=runner, runtime="jail")
        return made[template]

    yield of
    for sandbox in made.values():
        sandbox.close()


@pytest.fixture
def run(
    spoken: Spoken, sandboxes: Callable[[str], Sandbox], require: Require
) -> Callable[..., Execution]:
    """Run a cell in the language's default context."""
    _require_tool(spoken, require)
    sandbox = sandboxes(spoken.template)

    def run(code: str, **options: Any) -> Execution:
        return sandbox.run(code, language=spoken.language, **options)

    return run


@pytest.fixture
def sandbox(spoken: Spoken, sandboxes: Callable[[str], Sandbox], require: Require) -> Sandbox:
    _require_tool(spoken, require)
    return sandboxes(spoken.template)


def _require_tool(spoken: Spoken, require: Require) -> None:
    if spoken.language.startswith("jupyter:"):
        name = spoken.language.partition(":")[2]
        found = Path("/usr/share/jupyter/kernels", name).is_dir()
        require("an R kernel for Jupyter", found, "run: apt-get install r-cran-irkernel")
        return
    language = registry.find(spoken.language)
    require(language.name, is_installed(language), f"run: {language.install}")


# -- one cell ------------------------------------------------------------------------------------


@each_language
def test_state_is_kept_and_the_value_is_shown(
    spoken: Spoken, run: Callable[..., Execution]
) -> None:
    assert run(spoken.keep).verdict is Verdict.OK
    execution = run(spoken.kept)
    assert execution.language == spoken.language
    if spoken.shown:
        assert execution.results[-1]["text/plain"] == spoken.shown
    else:
        assert execution.stdout == "42\n"


@the("split")
def test_streams_are_apart(spoken: Spoken, run: Callable[..., Execution]) -> None:
    execution = run(spoken.split)
    # IRkernel adds a line end to messages.
    assert (execution.stdout, execution.stderr.rstrip() + "\n") == ("out\n", "err\n")


@each_language
def test_text_outside_of_ascii_passes(spoken: Spoken, run: Callable[..., Execution]) -> None:
    assert run(spoken.say).stdout == f"{TEXT}\n"


@each_language
def test_error_is_typed_and_the_context_lives(
    spoken: Spoken, run: Callable[..., Execution]
) -> None:
    run(spoken.keep)
    execution = run(spoken.fail)
    if spoken.error:
        assert execution.verdict is Verdict.EXCEPTION
        assert execution.error is not None
        assert execution.error.name == spoken.error
    else:
        assert (execution.verdict, execution.exit_code) == (Verdict.NONZERO_EXIT, 7)
    assert run(spoken.kept).verdict is Verdict.OK


@the("echo")
def test_input_reaches_the_cell_and_ends_with_it(
    spoken: Spoken, run: Callable[..., Execution]
) -> None:
    assert run(spoken.echo, stdin=f"{TEXT}\nmore\n").stdout.strip() == TEXT
    assert run(spoken.echo, stdin="second\n").stdout.strip() == "second"


@the("rich")
def test_rich_results_are_shown(spoken: Spoken, run: Callable[..., Execution]) -> None:
    results = run(spoken.rich).results
    assert [bundle[spoken.mime] for bundle in results if spoken.mime in bundle]


@the("flood")
def test_flood_is_cut_and_the_context_lives(spoken: Spoken, run: Callable[..., Execution]) -> None:
    run(spoken.keep)
    execution = run(spoken.flood, timeout=30)
    assert execution.verdict is Verdict.OUTPUT
    assert set(execution.stdout) == {"x"}
    assert len(execution.stdout) + execution.outcome.truncated.stdout == 3_000_000
    assert run(spoken.kept).verdict is Verdict.OK


@the("stream")
def test_output_comes_while_the_cell_runs(
    spoken: Spoken, sandbox: Sandbox, run: Callable[..., Execution]
) -> None:
    heard: queue.Queue[str] = queue.Queue()
    ended: list[Execution] = []

    def work() -> None:
        ended.append(run(spoken.stream, on_stdout=heard.put))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert heard.get(timeout=60).startswith("a")
        assert not ended
        sandbox.files.write("go", "")
    finally:
        thread.join(90)
    sandbox.files.remove("go")
    assert ended[0].stdout == "a\nb\n"


# -- interrupt, end, restart ---------------------------------------------------------------------


@the("loop")
def test_interrupt_ends_an_endless_loop_and_nothing_else(
    spoken: Spoken, sandbox: Sandbox, run: Callable[..., Execution]
) -> None:
    run(spoken.keep)

    def interrupt(_text: str) -> None:
        threading.Thread(target=sandbox.interrupt, args=(spoken.language,)).start()

    execution = run(spoken.loop, on_stdout=interrupt)
    assert execution.verdict is Verdict.INTERRUPTED
    assert execution.error is not None
    assert execution.error.name == "KeyboardInterrupt"
    assert run(spoken.kept).verdict is Verdict.OK


@the("loop")
def test_wall_limit_ends_the_cell_and_keeps_the_state(
    spoken: Spoken, run: Callable[..., Execution]
) -> None:
    run(spoken.keep)
    for _ in range(2):  # what ends one cell must not end the next, which begins at once
        execution = run(spoken.loop, timeout=2)
        assert (execution.verdict, execution.stdout) == (Verdict.WALL_TIME, "on\n")
    assert run(spoken.kept).verdict is Verdict.OK


@the("leave")
def test_end_of_the_interpreter_is_the_end_of_the_context_and_said(
    spoken: Spoken, sandbox: Sandbox, run: Callable[..., Execution]
) -> None:
    run(spoken.keep)
    execution = run(spoken.leave)
    assert (execution.verdict, execution.exit_code) == (Verdict.NONZERO_EXIT, 3)
    assert any("state is lost" in note for note in execution.outcome.notes)
    after = run(spoken.keep)
    assert any("ran in a new one, without its state" in note for note in after.outcome.notes)
    assert sandbox.status == "running"


@each_language
def test_restart_forgets(spoken: Spoken, sandbox: Sandbox, run: Callable[..., Execution]) -> None:
    run(spoken.keep)
    sandbox.contexts.restart(spoken.language)
    execution = run(spoken.kept)
    seen = [bundle["text/plain"] for bundle in execution.results]
    assert (spoken.shown or "42\n") not in (*seen, execution.stdout)


# -- beside each other ---------------------------------------------------------------------------


@each_language
def test_files_are_shared_with_other_languages(
    spoken: Spoken, sandbox: Sandbox, run: Callable[..., Execution]
) -> None:
    run(spoken.write)
    shown = sandbox.run("print(open('shared.txt', encoding='utf-8').read().strip())")
    assert shown.stdout == f"{TEXT}\n"
    sandbox.run(f"open('shared.txt', 'w', encoding='utf-8').write({TEXT!r})")
    assert run(spoken.read).stdout.strip() == TEXT


@each_language
def test_context_of_a_name_is_apart_from_the_default_one(
    spoken: Spoken, sandbox: Sandbox, run: Callable[..., Execution]
) -> None:
    run(spoken.keep)
    sandbox.contexts.create("other", language=spoken.language)
    listed = {str(each): each.language for each in sandbox.contexts.list()}
    assert (listed["other"], listed[spoken.language]) == (spoken.language, spoken.language)
    assert listed["python"] == "python"
    assert sandbox.run(spoken.say, context="other").language == spoken.language
    fresh = sandbox.run(spoken.kept, context="other")
    seen = [bundle["text/plain"] for bundle in fresh.results]
    assert (spoken.shown or "42\n") not in (*seen, fresh.stdout)
    sandbox.contexts.close("other")


@pytest.mark.attack
@the("shell")
def test_junk_in_the_drivers_pipes_ends_only_its_own_context(
    spoken: Spoken, sandbox: Sandbox, run: Callable[..., Execution]
) -> None:
    sandbox.run("witness = 1")
    run(spoken.keep)
    hostile = f"hostile {spoken.language}"
    sandbox.contexts.create(hostile, language=spoken.language)
    sandbox.files.write("junk.sh", _JUNK)
    first = sandbox.run(spoken.shell, context=hostile)
    after = sandbox.run(spoken.say, context=hostile)
    assert sandbox.files.read("tried").startswith("x")
    notes = (*first.outcome.notes, *after.outcome.notes)
    assert any("its state" in note for note in notes), (first, after)
    assert sandbox.run("witness").text == "1"
    assert run(spoken.kept).verdict is Verdict.OK
    sandbox.contexts.close(hostile)
    sandbox.files.remove("tried")


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("spoken", [JAVASCRIPT], ids=["javascript"])
def test_context_runs_one_language(sandbox: Sandbox, spoken: Spoken) -> None:
    sandbox.contexts.create("one", language="bash")
    with pytest.raises(Conflict, match="it runs bash, not javascript"):
        sandbox.run(spoken.say, language="javascript", context="one")
    sandbox.contexts.close("one")


def test_language_without_contexts_is_refused(sandboxes: Callable[[str], Sandbox]) -> None:
    with pytest.raises(UsageError, match="keeps no state between cells"):
        sandboxes("python").contexts.create("x", language="c")


def test_missing_tool_is_refused_with_what_to_install(runner: Runner) -> None:
    with Sandbox(runner=runner, runtime="jail", env={"PATH": "/nowhere"}) as sandbox:
        for _ in range(2):
            with pytest.raises(UsageError, match="install it: apt-get install nodejs"):
                sandbox.run("1", language="javascript")
        assert [str(each) for each in sandbox.contexts.list()] == ["python"]


def test_sql_needs_a_template_that_has_it(sandboxes: Callable[[str], Sandbox]) -> None:
    with pytest.raises(UsageError, match="this template has no duckdb"):
        sandboxes("python").run("select 1", language="sql")


def test_unknown_kernel_is_refused_by_name(sandboxes: Callable[[str], Sandbox]) -> None:
    with pytest.raises(UsageError, match="'nowhere' is missing"):
        sandboxes("data").run("1", language="jupyter:nowhere")


_LATE_KERNEL = """
import json, sys, time
import zmq
from jupyter_client.session import Session

with open(sys.argv[1]) as file:
    told = json.load(file)
session = Session(key=told["key"].encode(), signature_scheme=told["signature_scheme"])
context = zmq.Context()
shell, published = context.socket(zmq.ROUTER), context.socket(zmq.PUB)
shell.bind(f"ipc://{told['ip']}-{told['shell_port']}")
is_late = True
while True:
    who, request = session.recv(shell, mode=0)
    session.send(published, "status", {"execution_state": "busy"}, request)
    if request["msg_type"] == "execute_request":
        session.send(published, "stream", {"name": "stdout", "text": "heard"}, request)
    kind = request["msg_type"].replace("_request", "_reply")
    session.send(shell, kind, {"status": "ok"}, request, who)
    session.send(published, "status", {"execution_state": "idle"}, request)
    if is_late:
        time.sleep(0.5)
        published.bind(f"ipc://{told['ip']}-{told['iopub_port']}")
        is_late = False
"""


def test_kernel_is_ready_when_what_it_publishes_is_heard(
    sandboxes: Callable[[str], Sandbox],
) -> None:
    """It answers at once, and opens the other connection later: else a cell would wait for ever."""
    sandbox = sandboxes("data")
    spec = {"argv": ["python3", "late.py", "{connection_file}"], "display_name": "", "language": ""}
    sandbox.files.write("late.py", _LATE_KERNEL)
    sandbox.files.mkdir(".local/share/jupyter/kernels/late", parents=True)
    sandbox.files.write(".local/share/jupyter/kernels/late/kernel.json", json.dumps(spec))
    execution = sandbox.run("1", language="jupyter:late", timeout=20)
    assert (execution.verdict, execution.stdout) == (Verdict.OK, "heard"), execution


def test_data_frames_of_a_python_context_are_tables(
    sandboxes: Callable[[str], Sandbox],
) -> None:
    sandbox = sandboxes("data")
    sandbox.run("import pandas; frame = pandas.DataFrame({'k': [1, 2]})")
    execution = sandbox.run("%%sql\nselect sum(k) as total from frame")
    assert '"rows": [[3]]' in execution.results[0]["application/json"]


def test_contexts_that_never_came_to_be_leave_nothing(
    runner: Runner, sandboxes: Callable[[str], Sandbox]
) -> None:
    """Any name of a kernel may be asked for; what is kept of those that fail would never end."""
    sandbox = sandboxes("data")
    for number in range(3):
        with pytest.raises(UsageError):
            sandbox.run("1", language=f"jupyter:nowhere{number}")

    async def known(engine: Engine, _put: object) -> set[str]:
        found = engine.sandbox(sandbox.id)
        assert found is not None
        return set(found.contexts._known)

    assert not any("nowhere" in name for name in runner.call(known))
    assert sandbox.run("6 * 7").text == "42"
