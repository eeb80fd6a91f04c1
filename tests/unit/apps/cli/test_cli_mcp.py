"""`cellwall mcp`: the short reading of its words, and what is not imported before it answers."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from cellwall import Engine
from cellwall.apps.cli import mcp, mcp_on_stdio
from cellwall.apps.cli.commands import app_of
from cellwall.apps.mcp.operators_choice import OperatorsChoice
from cellwall.apps.mcp.tools.catalog import Available
from cellwall.apps.mcp.tools.preferred import preferred
from cellwall.apps.mcp.transport import stdio
from conftest import Require
from kit.command_line import works

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellwall.runtimes.base import AheadOfEngine

_NEITHER_SDK_NOR_PARSER = (
    "heavy = ('typer', 'click', 'rich', 'pydantic', 'annotated_types', 'mcp', 'mcp_types', 'anyio',"
    " 'starlette', 'uvicorn', 'httpx', 'jsonschema')\n"
)


def _declared(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> int:
    seen: list[int] = []
    monkeypatch.setattr(mcp, "serve", lambda budget, *_: seen.append(budget))
    CliRunner().invoke(app_of(["mcp"]), ["mcp", *words], catch_exceptions=False)
    return seen[0]


@pytest.mark.parametrize("words", [[], ["--budget", "500"], ["--budget", "0"]])
def test_usual_words_mean_what_the_declared_options_say(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mcp_on_stdio.budget_in(words) == _declared(monkeypatch, words)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--budget"],
        ["--budget=500"],
        ["--budget", "-1"],
        ["--budget", "1_0"],
        ["--budget", "٣"],
        ["--budget", "5", "--budget", "6"],
        ["--budget", "5", "word"],
        ["word"],
    ],
)
def test_other_words_are_left_to_the_declared_options(words: list[str]) -> None:
    assert mcp_on_stdio.budget_in(words) is None


def test_both_know_the_same_option() -> None:
    option, *others = inspect.signature(mcp.mcp).parameters.values()
    assert (option.name, option.default) == ("budget", mcp_on_stdio.budget_in([]))
    # left to the declared options
    assert [(each.name, each.default) for each in others] == [
        (name, None) for name in ("allow", "deny", "network", "secret", "image", "user", "volume")
    ]


def _printed(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    return done.stdout.decode()


def test_engine_starts_without_the_sdk_and_its_imports() -> None:
    code = (
        "import sys\n"
        "import cellwall.apps.cli.main, cellwall.apps.cli.mcp_on_stdio\n"
        "import cellwall.apps.mcp.transport.stdio\n"
        "from cellwall.apps.engines import make_engine\n"
        f"{_NEITHER_SDK_NOR_PARSER}"
        "print([m for m in sys.modules if m.partition('.')[0].startswith(heavy)])"
    )
    assert _printed(code) == "[]\n"


def test_usual_words_load_no_parser_of_command_lines() -> None:
    """The loop is not run, because the SDK brings a parser for a program of its own."""
    code = (
        "import atexit, sys\n"
        f"{_NEITHER_SDK_NOR_PARSER}"
        "from cellwall.apps.mcp.transport import stdio\n"
        "stdio.run = lambda _, budget, *others: print(budget)\n"
        "sys.argv[1:] = ['mcp', '--budget', '5000']\n"
        "atexit.register("
        "lambda: print([m for m in sys.modules if m.partition('.')[0].startswith(heavy)]))\n"
        "from cellwall.apps.cli.main import main; main()"
    )
    assert _printed(code) == "5000\n[]\n"


def test_its_engine_answers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Engine] = []
    monkeypatch.setattr(stdio, "run", lambda engine_of, *_: made.append(engine_of()))
    monkeypatch.setattr(mcp_on_stdio, "check_usable", lambda _: None)  # a test's own streams
    mcp_on_stdio.serve(5000)
    runtime = made[0]._runtimes.get("jail")
    assert getattr(runtime, "answers_first", False)


@pytest.mark.parametrize(
    ("built", "expected"),
    [({"data", "python"}, "data"), ({"python"}, "python"), (set[str](), "python")],
)
def test_a_call_without_a_template_gets_the_first_built_one(built: set[str], expected: str) -> None:
    assert preferred(built.__contains__) == expected
    assert Available(("python",), dict.fromkeys(built, "")).best_template == expected


def test_its_processes_begin_before_its_engine_and_end_with_it(
    monkeypatch: pytest.MonkeyPatch, require: Require
) -> None:
    require("sandboxes", not works(), works())
    seen: list[AheadOfEngine] = []

    def run(engine_of: Callable[[], Engine], *_: object) -> None:
        begun = engine_of()._runtimes._head_start
        assert begun is not None
        assert begun.is_left
        seen.append(begun)

    monkeypatch.setattr(stdio, "run", run)
    monkeypatch.setattr(mcp_on_stdio, "check_usable", lambda _: None)
    mcp_on_stdio.serve(5000)
    assert not seen[0].is_left


def test_nothing_begins_for_sandboxes_on_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def run(engine_of: Callable[[], Engine], *_: object) -> None:
        seen.append(engine_of()._runtimes._head_start)

    monkeypatch.setattr(stdio, "run", run)
    monkeypatch.setattr(mcp_on_stdio, "check_usable", lambda _: None)
    mcp_on_stdio.serve(5000, OperatorsChoice(image="debian"))
    assert seen == [None]
