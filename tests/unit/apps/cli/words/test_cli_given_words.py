"""The words of `--file` and `--env`: what a program is given, read before it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.apps.cli.words import given_words
from cellwall.apps.cli.words.given_words import files_of_words, variables_of_words
from cellwall.model.errors import UsageError


@pytest.fixture(autouse=True)
def _in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_bytes(b"1,2\n")
    Path("in/deep").mkdir(parents=True)
    Path("in/b").write_bytes(b"b")
    Path("in/deep/c").write_bytes(b"\xff")
    Path("with:colon").write_bytes(b"colon")


@pytest.mark.parametrize(
    ("words", "files"),
    [
        ([], {}),
        (["a.csv"], {"a.csv": b"1,2\n"}),
        (["./in/b"], {"b": b"b"}),
        (["a.csv:data/x.csv"], {"data/x.csv": b"1,2\n"}),
        (["in"], {"in/b": b"b", "in/deep/c": b"\xff"}),
        (["in/"], {"in/b": b"b", "in/deep/c": b"\xff"}),
        (["in:."], {"b": b"b", "deep/c": b"\xff"}),
        (["in/deep:out"], {"out/c": b"\xff"}),
        (["with:colon"], {"with:colon": b"colon"}),
        (["with:colon:c"], {"c": b"colon"}),
        (["a.csv", "in/b"], {"a.csv": b"1,2\n", "b": b"b"}),
    ],
)
def test_files_have_their_own_names_or_given_ones(
    words: list[str], files: dict[str, bytes]
) -> None:
    assert files_of_words(words) == files


@pytest.mark.parametrize("word", [".", "in/.."])
def test_folder_that_has_no_name_of_its_own_has_its_real_one(word: str, tmp_path: Path) -> None:
    assert f"{tmp_path.name}/a.csv" in files_of_words([word])


def _pipe() -> None:
    os.mkfifo("in/pipe")


def _linked_folder() -> None:
    Path("in/link").symlink_to(Path("in/deep").resolve())


@pytest.mark.parametrize(
    ("words", "make", "what"),
    [
        (["none"], None, "read none: No such file"),
        (["none:b"], None, "read none: No such file"),
        (["a.csv", "in/b:a.csv"], None, "two files are named a.csv"),
        (["in"], _pipe, "in/pipe is no regular file"),
        (["in"], _linked_folder, "in/link is no regular file"),
    ],
)
def test_what_cannot_be_read_is_said_by_name(
    words: list[str], make: Callable[[], None] | None, what: str
) -> None:
    if make is not None:
        make()
    with pytest.raises(UsageError, match=what) as raised:
        files_of_words(words)
    assert raised.value.remedy


@pytest.mark.parametrize("bound", ["_MOST_FILES", "_MOST_BYTES"])
def test_too_much_is_refused_while_it_is_read(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_words, bound, 1)
    assert files_of_words(["in/b"]) == {"b": b"b"}
    with pytest.raises(UsageError, match="is more than"):
        files_of_words(["in"])


def test_variables_are_given_or_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "o=1")
    given = variables_of_words(["A=1", "B=", "C=x=y", "OURS", "A=2"])
    assert given == {"A": "2", "B": "", "C": "x=y", "OURS": "o=1"}


@pytest.mark.parametrize(
    ("word", "what"), [("=1", "has no name"), ("", "has no name"), ("NOT_THERE", "no such var")]
)
def test_variable_that_is_none_is_refused(word: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        variables_of_words([word])
