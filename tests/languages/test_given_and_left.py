"""What a program is given as `arguments` and leaves as `result`, where a language makes it hard."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.embedded import run
from cellwall.languages import registry
from cellwall.languages.entries.language import Language
from cellwall.languages.tools import is_installed
from conftest import Require


@pytest.mark.parametrize(
    ("language", "code", "arguments", "result"),
    [
        ("perl", 'sub main { 5 }\nif (-e "config") { print 1 }\n', {"a": 1}, 5),
        ("lua", "function main(a) return {a.x[1], a.x[3]} end", {"x": [1, None, 3]}, [1, 3]),
    ],
)
def test_value_arrives_and_comes_back(
    language: str, code: str, arguments: dict[str, Any], result: object, require: Require
) -> None:
    known = registry.find(language)
    require(known.name, is_installed(known), f"run: {known.install}")
    ended = run(code, language=language, arguments=arguments)
    assert (ended.verdict, ended.stderr, ended.result) == ("ok", "", result)


@pytest.mark.parametrize(
    ("query", "result"),
    [
        ("SELECT 1 AS id, 2 AS id, 3 AS id_1", [{"id": 1, "id_2": 2, "id_1": 3}]),
        ("SELECT * FROM range(3000)", [{"range": number} for number in range(3000)]),
    ],
)
def test_result_of_sql_is_whole(query: str, result: list[dict[str, int]]) -> None:
    ended = run(query, language="sql", template="data")
    assert ended.result == result


def test_every_table_of_sql_is_shown_and_the_last_is_the_result() -> None:
    query = "SELECT 1 AS a; CREATE TABLE t(i INT); INSERT INTO t VALUES (2); SELECT i FROM t"
    ended = run(query, language="sql", template="data")
    assert [bundle["text/plain"] for bundle in ended.results] == ["a\n-\n1", "i\n-\n2"]
    assert (ended.text, ended.result) == ("i\n-\n2", [{"i": 2}])
    half = run("SELECT 1 AS a; SELECT * FROM nowhere", language="sql", template="data")
    assert (half.ok, half.text) == (False, "a\n-\n1")


def test_result_of_sql_that_is_too_large_is_none_and_said() -> None:
    ended = run("SELECT * FROM range(200000)", language="sql", template="data")
    assert ended.result is None
    assert any("COPY" in note for note in ended.outcome.notes)


@pytest.mark.parametrize(
    "language",
    [each for each in registry.LANGUAGES.values() if not each.compile],
    ids=lambda each: each.name,
)
def test_empty_program_ends_well(language: Language, require: Require) -> None:
    """As an empty file does outside; where there is a compiler, it has the word."""
    require(language.name, is_installed(language), f"run: {language.install}")
    template = "data" if language.name == "sql" else "python"
    for code in ("", "\n"):
        ended = run(code, language=language.name, template=template, timeout=60)
        assert (ended.verdict, ended.stdout.strip(), ended.stderr) == ("ok", "", "")
