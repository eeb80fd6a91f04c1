"""What a cell calls its own things, and what its errors say, does not reach what runs cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from cellwall.embedded import Runner, Sandbox
from cellwall.engine.engine import Engine
from cellwall.engine.templates.store import state_dir
from cellwall.languages import registry
from cellwall.languages.tools import is_installed
from cellwall.model.execution import Execution
from conftest import Require

pytestmark = pytest.mark.timeout(180)
_MOST_OF_A_PLANE_BEYOND = "\U0001f600" * 60_000


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner(lambda: Engine(state_dir()))
    yield made
    made.close()


@pytest.fixture
def run(runner: Runner, require: Require) -> Iterator[Callable[..., Execution]]:
    limits = {"memory_mb": 2048, "processes": 400, "wall_s": 60}
    with Sandbox("python", limits, runner=runner, runtime="jail") as sandbox:

        def run(language: str, code: str, stdin: str = "") -> Execution:
            known = registry.find(language)
            require(known.name, is_installed(known), f"run: {known.install}")
            return sandbox.run(code, language=language, stdin=stdin)

        yield run


class Taken(NamedTuple):
    """A cell that takes names, then one that has to work as if it had not."""

    language: str
    takes: str
    then: str
    prints: str


TAKEN = (
    Taken("javascript", "const process = {pid: 1}", "console.log(1)", "1\n"),
    Taken("javascript", "const Buffer = 1, JSON = 2, Promise = 3", "console.log(2)", "2\n"),
    Taken("javascript", "let setInterval, Error, Object", "console.log(3)", "3\n"),
    Taken("bash", "printf() { :; }; read() { :; }; trap() { :; }; X=4", "echo $X", "4\n"),
    Taken("bash", "source() { :; }; shopt() { :; }", "echo 5", "5\n"),
    Taken("r", "close <- function(x, y) x\nfile <- 1\npaste0 <- max", "cat(6)", "6"),
)


@pytest.mark.parametrize("taken", TAKEN, ids=lambda each: f"{each.language}-{each.then}")
def test_a_cell_may_call_its_own_things_anything(
    run: Callable[..., Execution], taken: Taken
) -> None:
    first = run(taken.language, taken.takes)
    assert (first.verdict, first.stderr) == ("ok", "")
    second = run(taken.language, taken.then)
    assert (second.verdict, second.stdout, second.stderr) == ("ok", taken.prints, "")


def test_an_error_of_r_is_the_cells_own_after_it_took_names(
    run: Callable[..., Execution],
) -> None:
    run("r", "max <- function(a, b) stop('taken')\nstartsWith <- function(...) stop('taken')")
    error = run("r", "stop('mine')").error
    assert error is not None
    assert error.value == "mine"


def test_classes_of_r_are_shown_by_the_cells_own_methods(run: Callable[..., Execution]) -> None:
    ended = run("r", "print.foo <- function(x, ...) cat('FOO\\n')\nstructure(1, class = 'foo')\n1")
    assert ended.stdout == "FOO\n"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "raise ValueError('\U0001f600' * 60_000)"),
        ("javascript", "throw new Error('\U0001f600'.repeat(60000))"),
        ("ruby", "raise '\U0001f600' * 60_000"),
    ],
)
def test_a_long_message_beyond_the_first_plane_is_an_error_like_others(
    run: Callable[..., Execution], language: str, code: str
) -> None:
    ended = run(language, code)
    assert ended.verdict == "exception"
    assert ended.error is not None
    assert ended.error.value[:100] == _MOST_OF_A_PLANE_BEYOND[:100]
    assert run(language, "1").verdict == "ok"


def test_a_thrown_error_of_javascript_is_said_once(run: Callable[..., Execution]) -> None:
    assert run("javascript", "throw new Error('x')").stderr == "Error: x\n    at cell-1:1:7\n"
    assert run("javascript", "1").stderr == ""


def test_an_error_of_ruby_that_cannot_be_shown_leaves_the_context(
    run: Callable[..., Execution],
) -> None:
    ended = run(
        "ruby", "x = 7\nclass E < StandardError; def message; raise 'no'; end; end; raise E"
    )
    assert ended.verdict == "exception"
    assert ended.error is not None
    assert "cannot be shown" in ended.error.value
    assert run("ruby", "puts x").stdout == "7\n"


def test_java_reads_all_of_its_input(run: Callable[..., Execution]) -> None:
    code = "System.out.print(new String(System.in.readAllBytes()))"
    assert run("java", code, stdin="all of it").stdout == "all of it"
