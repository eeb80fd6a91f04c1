"""How an interpreter ends is what is said of its end: status and signal, in every language."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from cellwall.embedded import Sandbox, run
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from cellwall.model.outcome import Verdict
from conftest import Require

pytestmark = pytest.mark.timeout(180)
_KILL = {
    "python": "import os; os.kill(os.getpid(), {})",
    "javascript": "process.kill(process.pid, {}); for (;;) {{}}",
    "typescript": "process.kill(process.pid, {}); for (;;) {{}}",
    "bash": "kill -{} $$",
    "ruby": "Process.kill({}, Process.pid); sleep",
    "r": "tools::pskill(Sys.getpid(), {}); Sys.sleep(60)",
    "java": 'new ProcessBuilder("kill", "-{}", "" + ProcessHandle.current().pid()).start();'
    " Thread.sleep(60000);",
}
_LEAVE = {
    "javascript": "process.exit(3)",
    "typescript": "process.exit(3)",
    "bash": "exit 3",
    "ruby": "exit 3",
    "r": "quit(status = 3)",
    "java": "System.exit(3);",
}
# Both are default actions that no interpreter here catches.
_SIGNALS = [signal.SIGABRT, signal.SIGKILL]


def _require(language: str, require: Require) -> None:
    known = registry.find(language)
    require(language, is_installed(known), f"run: {known.install}")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(limits={"memory_mb": 3072, "processes": 400, "wall_s": 60}) as made:
        yield made


@pytest.mark.parametrize("number", _SIGNALS, ids=lambda each: each.name)
@pytest.mark.parametrize("language", _KILL)
def test_cell_that_a_signal_ends_says_which(
    language: str, number: signal.Signals, sandbox: Sandbox, require: Require
) -> None:
    _require(language, require)
    ended = sandbox.run(_KILL[language].format(int(number)), language=language)
    found = (ended.verdict, ended.outcome.signal, ended.exit_code)
    assert found == (Verdict.SIGNALLED, number, None), ended.stderr


@pytest.mark.parametrize("language", [each for each in _KILL if each != "java"])
def test_program_that_a_signal_ends_says_which(language: str, require: Require) -> None:
    _require(language, require)
    for number in _SIGNALS:
        ended = run(_KILL[language].format(int(number)), language=language, timeout=60)
        found = (ended.verdict, ended.outcome.signal, ended.exit_code)
        assert found == (Verdict.SIGNALLED, number, None), ended.stderr


@pytest.mark.parametrize("language", _LEAVE)
def test_cell_that_leaves_says_its_status(
    language: str, sandbox: Sandbox, require: Require
) -> None:
    _require(language, require)
    ended = sandbox.run(_LEAVE[language], language=language)
    assert (ended.verdict, ended.exit_code) == (Verdict.NONZERO_EXIT, 3)


_WRONG: dict[str, Callable[[int], str]] = {
    "python": lambda line: "\n" * (line - 1) + "nowhere()",
    "javascript": lambda line: "\n" * (line - 1) + "nowhere()",
    "bash": lambda line: "\n" * (line - 1) + "nowhere",
    "ruby": lambda line: "\n" * (line - 1) + "nowhere()",
    "r": lambda line: "\n" * (line - 1) + "nowhere()",
}


@pytest.mark.parametrize("language", _WRONG)
def test_error_of_a_cell_names_no_descriptor_of_ours(
    language: str, sandbox: Sandbox, require: Require
) -> None:
    _require(language, require)
    ended = sandbox.run(_WRONG[language](3), language=language)
    assert "nowhere" in ended.stderr
    assert "/proc/" not in ended.stderr


def test_error_of_a_bash_cell_names_cell_and_line_and_leaves_nothing(sandbox: Sandbox) -> None:
    sandbox.run("true", language="bash")
    ended = sandbox.run("\n\nnowhere", language="bash")
    assert ended.stderr == "/tmp/.cell-2: line 3: nowhere: command not found\n"
    sandbox.run("exit 1", language="bash")
    assert sandbox.commands.run("ls -A /tmp").stdout == ""


def test_bash_cell_runs_where_its_name_is_taken(sandbox: Sandbox) -> None:
    sandbox.commands.run("touch /tmp/.cell-1")
    ended = sandbox.run("echo $0 ran", language="bash")
    assert (ended.stdout, ended.verdict) == ("bash ran\n", Verdict.OK)
