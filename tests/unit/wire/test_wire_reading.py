"""Back from JSON: what `answer` writes, `reading` reads; what `asking` asks, a schema takes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from cellwall.model import errors
from cellwall.model.execution import CommandResult, Event, Execution, ExecutionError
from cellwall.model.files import Change
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Truncated, Usage, Verdict
from cellwall.server.core.errors import envelope, headers_of, status_of
from cellwall.server.schemas.requests import CommandBody, ExecuteBody
from cellwall.wire import asking
from cellwall.wire.answer import answer, event_line, one_line
from cellwall.wire.reading import (
    change_of,
    command_result_of,
    error_of,
    event_of,
    execution_of,
    outcome_of,
)

ISOLATION = Isolation("jail", IsolationLevel.NAMESPACE, "d" * 64, {"memory_mb": "hard"})
OUTCOME = Outcome(
    Verdict.SIGNALLED,
    ISOLATION,
    signal=9,
    usage=Usage(0.25, 0.125, 1 << 20, 3, 5, 6),
    truncated=Truncated(1, 2, 3),
    notes=("why", "what to try"),
)
EXECUTION = Execution(
    id="e1",
    language="python",
    stdout="1\n",
    stderr="é",
    outcome=OUTCOME,
    limits=Limits(memory_mb=77),
    result={"a": [1, None]},
    results=({"text/plain": "1", "image/png": "AA=="},),
    error=ExecutionError("E", "v", "tb"),
    template="python",
    sandbox_id="s1",
    files={"a.bin": b"\x00\xff"},
)


def sent(value: Any) -> Any:
    return json.loads(one_line(value))


def test_execution_survives_the_way() -> None:
    assert execution_of(sent(answer(EXECUTION))) == EXECUTION


def test_start_comes_from_the_servers_clock() -> None:
    value = {**sent(answer(EXECUTION)), "started_at": "2026-11-21T20:47:16.123Z"}
    assert execution_of(value).started_at == pytest.approx(1795294036.123)


def test_key_that_is_not_known_yet_is_left_alone() -> None:
    value = sent(answer(EXECUTION))
    value["usage"]["new"] = value["new"] = value["limits"]["new"] = value["truncated"]["new"] = 1
    assert execution_of(value) == EXECUTION


EVENTS = [
    Event(1, "stdout", text="a\n"),
    Event(2, "stderr", text="\u2028"),
    Event(3, "display", data={"text/plain": "x"}),
    Event(4, "display", data={"text/plain": "x", "image/png": "AA=="}),
    Event(5, "result", data={"text/plain": "x"}),
    Event(6, "error", error=ExecutionError("E", "v", "tb")),
    Event(7, "value", value={"n": 1}),
    Event(8, "tool_call", data={"call": 1, "tool": "search", "decision": "ok", "error": None}),
    Event(9, "gap", value={"after": 7, "next": 10, "lost": 2}),
    Event(10, "end", outcome=OUTCOME),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: f"{event.seq}-{event.kind}")
def test_event_survives_the_way(event: Event) -> None:
    assert event_of(sent(event_line(event))) == event


def test_end_of_what_never_ran_says_so() -> None:
    event = event_of({"seq": 1, "type": "end", "verdict": "cancelled", "outcome": None})
    assert event.outcome is not None
    assert event.outcome.verdict is Verdict.CANCELLED
    assert event.outcome.notes == ("nothing ran",)


def test_command_comes_with_output_and_outcome() -> None:
    value = {"stdout": "a", "stderr": "b", "outcome": sent(OUTCOME.as_json())}
    assert command_result_of(value) == CommandResult("a", "b", OUTCOME)
    with pytest.raises(ValueError, match="no outcome"):
        command_result_of({"stdout": None, "stderr": None, "outcome": None})
    assert outcome_of(value["outcome"]) == OUTCOME


def test_change_survives_the_way() -> None:
    value = {"seq": 1, "type": "change", "kind": "moved", "path": "a", "target": "b"}
    assert change_of({**value, "is_directory": True}) == Change("moved", "a", "b", True)


FAILURES: list[errors.CellwallError] = [
    errors.UsageError("step: object", remedy="do"),
    errors.NotFound("m"),
    errors.Conflict("m", remedy="do"),
    errors.CapacityError("m", retry_after_s=7, remedy="do"),
    errors.QuotaExceeded("cpus", "m", retry_after_s=7, remedy="do"),
    errors.SandboxUnavailable("m"),
    errors.Conflict("m", remedy="try again", is_passing=True),
    errors.FileError("m", reason="no_space"),
    errors.HostUnsupported("x", "m", remedy="do"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
def test_error_survives_the_way(failure: errors.CellwallError) -> None:
    status, headers = status_of(failure), headers_of(failure)
    body = sent(envelope(failure, "r1"))["error"]
    found = error_of(body, status, float(headers.get("retry-after", 1)))
    assert type(found) is type(failure)
    assert (found.message, found.remedy, found.request_id) == (
        failure.message, failure.remedy, "r1",
    )  # fmt: skip
    for name in ("reason", "retry_after_s", "quota", "position", "is_passing"):
        assert getattr(found, name, None) == getattr(failure, name, None)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("unauthorized", 401, errors.AccessDenied),
        ("forbidden", 403, errors.AccessDenied),
        ("rate_limited", 429, errors.CapacityError),
        ("port_unreachable", 502, errors.PortError),
        ("sandbox_broken", 500, errors.SandboxBroken),
        ("too_large", 413, errors.UsageError),
        ("scan_blocked", 422, errors.UsageError),
        ("internal", 500, errors.CellwallError),
        ("of a later version", 500, errors.CellwallError),
    ],
)
def test_code_of_http_alone_is_an_error_too(
    code: str, status: int, kind: type[errors.CellwallError]
) -> None:
    assert type(error_of({"code": code, "message": "m"}, status)) is kind


# -- asking ------------------------------------------------------------------------------------


def test_what_is_asked_fits_the_servers_schema() -> None:
    body = {
        **asking.source("print(1)"),
        **asking.stdin("a"),
        "files": asking.files({"a": "t", "b": b"\xff"}),
        "limits": asking.limits(Limits()),
        "args": asking.words(["a"], "args"),
    }
    read = ExecuteBody.model_validate_json(asking.encoded(body))
    assert read.files is not None
    assert read.files["a"] == "t"
    assert read.limits is not None
    assert read.limits.memory_mb == 512
    for command in ("a b", ["a", "b"]):
        CommandBody.model_validate_json(asking.encoded(asking.command(command)))


@pytest.mark.parametrize("data", [b"\x00\xff", "\udcff"])
def test_stdin_that_is_no_text_travels_as_base64(data: str | bytes) -> None:
    raw = data if isinstance(data, bytes) else b"\xff"
    assert asking.stdin(data) == {"stdin_b64": base64.b64encode(raw).decode()}


def test_none_is_no_stdin_and_no_limits() -> None:
    assert (asking.stdin(None), asking.limits(None), asking.files(None)) == ({}, None, None)


@pytest.mark.parametrize(
    "work",
    [
        lambda: asking.source(b"print(1)"),  # type: ignore[arg-type]
        lambda: asking.stdin(1),  # type: ignore[arg-type]
        lambda: asking.limits({"memory": 1}),
        lambda: asking.limits(5),  # type: ignore[arg-type]
        lambda: asking.files({"a": 1}),  # type: ignore[dict-item]
        lambda: asking.words("abc", "args"),
        lambda: asking.command(""),
        lambda: asking.command([]),
        lambda: asking.encoded({"arguments": {"x": float("nan")}}),
        lambda: asking.encoded({"arguments": {"x": {1}}}),
    ],
)
def test_what_json_cannot_carry_is_a_mistake_of_the_callers(work: Any) -> None:
    with pytest.raises(errors.UsageError) as refused:
        work()
    assert refused.value.remedy


def test_isolation_of_every_level_survives() -> None:
    for level in IsolationLevel:
        outcome = replace(OUTCOME, isolation=replace(ISOLATION, level=level))
        assert outcome_of(sent(outcome.as_json())) == outcome
