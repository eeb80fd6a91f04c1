"""What goes with a program's one request, and in which sandbox that is enough."""

from __future__ import annotations

from typing import Any

import pytest

from cellwall.engine.programs.oneshot import Stage, purpose_of, run_stage
from cellwall.engine.programs.requests import Request, plan
from cellwall.model.limits import Limits

_MIB = 1024 * 1024


def _stage(**given: Any) -> Stage:
    return run_stage(plan(Request("pass", **given), Limits()))


@pytest.mark.parametrize(
    ("given", "purpose"),
    [
        ({}, "single_program"),
        ({"stdin": ""}, "single_program"),
        ({"stdin": "x" * 65_536}, "single_program"),
        ({"stdin": "x" * 65_537}, "program"),
        ({"files": {"a": b"x" * (_MIB - 4)}}, "single_program"),
        ({"files": {"a": b"x" * (_MIB - 3)}}, "program"),
        ({"files": {"a": b"x" * (_MIB - 5)}, "stdin": "xy"}, "program"),
        ({"files": {"x" * 3000: b""}}, "single_program"),
        ({"files": {f"{number:>90}": b"" for number in range(1000)}}, "program"),
        ({"arguments": {"a": "x" * 80_000}}, "single_program"),
        ({"collect": ["a"]}, "program"),
        ({"artifacts": "a"}, "program"),
        ({"start": "exec"}, "single_program"),
        ({"language": "bash"}, "program"),
        ({"language": "sql"}, "program"),
    ],
)
def test_small_python_program_may_be_alone_with_all_that_it_needs(
    given: dict[str, Any], purpose: str
) -> None:
    asked = plan(Request("pass", **given), Limits())
    assert purpose_of(asked, run_stage(asked).with_files_enclosed()) == purpose


def test_request_has_its_source_then_files_then_stdin() -> None:
    stage = _stage(files={"a": "one", "b/c": "four"}, stdin="given").with_files_enclosed()
    assert stage.files == ()
    assert stage.work.body == b"passonefourgiven"
    assert stage.work.fields["files"] == [("a", 3), ("b/c", 4)]
    assert (stage.work.fields["stdin"], stage.work.fields["stdin_bytes"]) == ("enclosed", 5)
    assert stage.work.stdin is None


def test_what_is_too_large_goes_by_itself() -> None:
    stage = _stage(files={"a": b"x" * 2 * _MIB}, stdin="y" * _MIB)
    assert stage.with_files_enclosed() == stage
    assert stage.work.body == b"pass"
    assert stage.work.fields["stdin"] == "stream"
    assert stage.work.stdin == b"y" * _MIB


def test_command_gets_its_files_and_stdin_as_ever() -> None:
    stage = _stage(language="bash", files={"a": "one"}, stdin="given")
    assert stage.with_files_enclosed() == stage
    assert stage.work.fields["stdin"] == "stream"
    assert stage.work.stdin == b"given"
    assert [path for path, _, _ in stage.files] == ["a", "main.sh"]
