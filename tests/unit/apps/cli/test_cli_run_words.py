"""The short reading of `cellwall run`'s words, compared with that of the declared options."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from typer.testing import CliRunner

from cellwall.apps.cli import one_program, run, run_words
from cellwall.apps.cli.commands import app_of

_USUAL: list[list[str]] = [
    [],
    ["-c", "print(1)"],
    ["-c", ""],
    ["-c", "print(1)", "--", "one", "--json", "-c"],
    ["-c", "print(1)", "one", "two"],
    ["a.py"],
    ["-"],
    ["a.py", "--json", "word", "--timeout", "2"],
    ["--timeout", "0.5", "--memory", "64", "--cpu", "2", "--pids", "7", "a.py"],
    ["--language", "bash", "--template", "data", "--stdin", "-", "x"],
    ["-l", "c", "--compile-option", "O2", "--compile-limit", "wall_s=3", "--demand-hard", "x.c"],
    ["--arg", "a=1", "--arg", "b=2", "--limit", "wall_s=3", "--start", "exec", "x"],
    ["--file", "a.csv", "--file", "b:in/b", "--env", "A=1", "--env", "B", "x"],
    ["--artifacts", "out", "--into", "here", "--trust", "semi", "--runtime", "jail", "x"],
    ["--isolation", "process", "--", "-x.py"],
    ["--network", "open", "--deny", "192.0.2.0/24", "--deny", "a.test:25", "x"],
    ["--allow", "a.test", "--secret", "K=env:V@a.test", "--secret", "L=env:W@b.test", "x"],
]
_LEFT = [
    ["--help"],
    ["-c"],
    ["-c", "--json"],
    ["-cprint(1)"],
    ["--timeout=2", "x"],
    ["--timeout", "1e3", "x"],
    ["--timeout", "nan", "x"],
    ["--memory", "-1", "x"],
    ["--memory", "1_0", "x"],
    ["--memory", "1.0", "x"],
    ["--memory", "٣", "x"],
    ["-c", "1", "-c", "2"],
    ["--lang", "c", "x"],
    ["--no-such-option", "x"],
]


def _declared(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def run_program(given: dict[str, Any]) -> int:
        seen.append(dict(given))
        return 0

    monkeypatch.setattr(one_program, "run_program", run_program)
    CliRunner().invoke(app_of(["run"]), ["run", *words], catch_exceptions=False)
    return seen[0]


@pytest.mark.parametrize("words", _USUAL)
def test_usual_words_mean_what_the_declared_options_say(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = run_words.read(words)
    assert short is not None
    long = _declared(monkeypatch, words)
    assert {name: value or None for name, value in short.items() if name != "code"} == {
        name: value or None for name, value in long.items() if name != "code"
    }
    assert short["code"] == long["code"]
    assert {type(value) for value in short.values()} <= {str, list, bool, *map(type, long.values())}


@pytest.mark.parametrize("words", _LEFT)
def test_other_words_are_left_to_the_declared_options(words: list[str]) -> None:
    assert run_words.read(words) is None


def test_both_know_the_same_options() -> None:
    short = run_words.read([])
    assert short is not None
    assert set(short) == set(inspect.signature(run.run).parameters)
    defaults = {name: each.default for name, each in inspect.signature(run.run).parameters.items()}
    assert short == defaults
