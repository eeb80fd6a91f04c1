"""The shell gathers lines until they are one input, as Python's own prompt does."""

from __future__ import annotations

import pytest

from cellwall.apps.cli.console.inputs import Collector


def fed(*lines: str, language: str = "python") -> list[str | None]:
    collector = Collector(language)
    return [collector.feed(line) for line in lines]


@pytest.mark.parametrize("line", ["1 + 1", "x = 3", "%pip list", "!ls -l", "print(", "1 +* 2"])
def test_one_line_is_complete_or_an_error_at_once(line: str) -> None:
    expected = None if line == "print(" else line
    assert fed(line) == [expected]


def test_a_block_ends_with_an_empty_line() -> None:
    assert fed("def f():", "    return 1", "") == [None, None, "def f():\n    return 1\n"]


def test_brackets_and_strings_go_on_over_lines() -> None:
    assert fed("f(", "1,", ")") == [None, None, "f(\n1,\n)"]
    assert fed('"""a', 'b"""') == [None, '"""a\nb"""']


def test_an_error_after_a_good_start_ends_the_input() -> None:
    assert fed("if True:", "return )")[-1] == "if True:\nreturn )"


def test_empty_lines_are_no_input() -> None:
    assert fed("", "   ") == [None, None]


def test_after_an_input_a_new_one_begins() -> None:
    collector = Collector()
    seen = [(collector.feed(line), collector.is_empty) for line in ("f(", ")", "2")]
    assert seen == [(None, False), ("f(\n)", True), ("2", True)]


def test_what_is_left_at_the_end_is_run() -> None:
    collector = Collector()
    collector.feed("for i in range(2):")
    collector.feed("    print(i)")
    assert collector.rest() == "for i in range(2):\n    print(i)"
    assert collector.rest() is None


def test_code_with_a_null_byte_is_left_to_the_inside() -> None:
    assert fed("x = '\0'") == ["x = '\0'"]


@pytest.mark.parametrize("language", ["javascript", "typescript", "java", "r"])
def test_input_of_a_language_with_brackets_ends_where_they_are_closed(language: str) -> None:
    assert fed("x = 1", language=language) == ["x = 1"]
    lines = ["f = g(function(n) {", "", "  n", "})"]
    assert fed(*lines, language=language) == [None, None, None, "\n".join(lines)]
    assert fed('print("((")', language=language) == ['print("((")']
    assert fed("f(", "", "", language=language) == [None, None, "f(\n\n"]


def test_input_of_sql_ends_with_a_semicolon_or_an_empty_line() -> None:
    assert fed("SELECT 1", "FROM t;", language="sql") == [None, "SELECT 1\nFROM t;"]
    assert fed("SELECT 1", "", language="sql") == [None, "SELECT 1\n"]


@pytest.mark.parametrize("language", ["bash", "ruby", "jupyter:ir"])
def test_input_of_a_language_of_words_ends_with_an_empty_line(language: str) -> None:
    assert fed("for x in a b; do", "done", "", language=language)[:2] == [None, None]
    assert fed("", language=language) == [None]
