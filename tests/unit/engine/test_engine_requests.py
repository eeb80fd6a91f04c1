"""What a caller can get wrong is found before a sandbox is claimed, with a remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellwall.engine.programs.requests import Request, plan
from cellwall.model.errors import CellwallError, NotFound, UsageError
from cellwall.model.limits import Limits
from cellwall.surface.shared.arguments import check_path

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("code that is bytes", {"code": b"x"}),
    ("NUL in code", {"code": "a\0b"}),
    ("half a surrogate pair", {"code": "'\ud800'"}),
    ("a kernel as a program", {"code": "1", "language": "jupyter:ir"}),
    ("17 MiB of code", {"code": "#" * (17 << 20)}),
    ("stdin that is a number", {"stdin": 3}),
    ("arguments that are a list", {"arguments": [1]}),
    ("arguments with NaN", {"arguments": {"a": float("nan")}}),
    ("arguments with an object", {"arguments": {"a": object()}}),
    ("arguments with a number as key", {"arguments": {1: 2}}),
    ("arguments of too many levels", {"arguments": {"a": json.loads("[" * 100 + "]" * 100)}}),
    ("a megabyte of arguments", {"arguments": {"a": "x" * (1 << 20)}}),
    ("absolute file name", {"files": {"/etc/x": ""}}),
    ("file name with ..", {"files": {"a/../../x": ""}}),
    ("file name with NUL", {"files": {"a\0": ""}}),
    ("empty file name", {"files": {"": ""}}),
    ("file name of a directory", {"files": {"a/": ""}}),
    ("file content that is a number", {"files": {"a": 3}}),
    ("the program's own name", {"files": {"main.sh": ""}, "language": "bash"}),
    ("unknown limit", {"limits": {"memory": 3}}),
    ("limit out of bounds", {"limits": {"memory_mb": 0}}),
    ("limits that are a number", {"limits": 3}),
    ("negative timeout", {"timeout": -1}),
    ("timeout that is NaN", {"timeout": float("nan")}),
    ("variable with =", {"env": {"A=B": "x"}}),
    ("variable with NUL", {"env": {"A": "x\0"}}),
    ("args that are one string", {"args": "abc"}),
    ("args with NUL", {"args": ["a\0"]}),
    ("collect with ..", {"collect": ["../x"]}),
]


@pytest.mark.parametrize(("case", "fields"), WRONG, ids=[row[0] for row in WRONG])
def test_wrong_request_is_a_usage_error_with_a_remedy(case: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        plan(Request(**{"code": "pass", **fields}), Limits())
    assert caught.value.remedy, case


def test_arguments_of_a_hundred_levels_are_planned() -> None:
    arguments = {"a": json.loads("[" * 99 + "]" * 99), "b": [[]] * 1000}
    assert plan(Request("pass", arguments=arguments), Limits()).arguments == arguments


def test_unknown_language_is_not_found() -> None:
    with pytest.raises(NotFound):
        plan(Request("pass", language="klingon"), Limits())


def test_right_request_is_planned() -> None:
    planned = plan(
        Request("pass", files={"a/b": "text"}, timeout=3, limits={"cpus": 2}, stdin="x"), Limits()
    )
    assert planned.files == (("a/b", b"text"),)
    assert (planned.limits.wall_s, planned.limits.cpus) == (3, 2)
    assert planned.stdin == b"x"


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800"])
def test_impossible_path_is_a_usage_error(path: str) -> None:
    with pytest.raises(CellwallError):
        check_path(path)
