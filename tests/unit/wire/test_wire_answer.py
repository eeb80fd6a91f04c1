"""The shapes at the edges: one answer, one event line, one error envelope."""

from __future__ import annotations

import base64
import inspect
import json
from dataclasses import fields, replace

import pytest

from cellwall.model import errors
from cellwall.model.execution import Event, Execution, ExecutionError
from cellwall.model.limits import Limits
from cellwall.model.outcome import Isolation, IsolationLevel, Outcome, Truncated, Usage, Verdict
from cellwall.wire.answer import answer, error_envelope, event_line, one_line, status_of

ISOLATION = Isolation("jail", IsolationLevel.NAMESPACE, "d" * 64, {"memory_mb": "hard"})
OUTCOME = Outcome(Verdict.OK, ISOLATION, exit_code=0, usage=Usage(wall_s=0.0123456789, cpu_s=0.01))
EXECUTION = Execution(
    id="e1", language="python", stdout="1\n", stderr="", outcome=OUTCOME, limits=Limits(),
    template="python", sandbox_id="s1",
)  # fmt: skip


def test_answer_has_every_published_key_in_order() -> None:
    published = (
        "execution_id sandbox_id template language status verdict stdout stderr result results "
        "exit_code signal exit_status error exception oom_killed time_ms execution_time artifacts "
        "truncated usage isolation limits notes trust compile"
    )
    assert list(answer(EXECUTION)) == published.split()


def test_answer_of_a_good_run_carries_output_times_and_isolation() -> None:
    got = answer(EXECUTION)
    assert (got["status"], got["verdict"], got["stdout"]) == ("success", "ok", "1\n")
    assert (got["time_ms"], got["execution_time"]) == (12.346, 0.012346)
    assert (got["error"], got["exception"], got["oom_killed"]) == (None, None, False)
    assert got["isolation"]["level"] == "namespace"
    assert got["isolation"]["limits"] == {"memory_mb": "hard"}
    assert set(got["limits"]) == {field.name for field in fields(Limits)}


def test_answer_of_an_exception_carries_traceback_and_parts() -> None:
    outcome = replace(OUTCOME, verdict=Verdict.EXCEPTION, exit_code=1)
    error = ExecutionError("ValueError", "no", "Traceback…\nValueError: no")
    got = answer(replace(EXECUTION, outcome=outcome, error=error))
    assert got["status"] == "error"
    assert got["error"] == "Traceback…\nValueError: no"
    assert got["exception"] == {
        "name": "ValueError",
        "value": "no",
        "traceback": got["error"],
        "line": None,
    }


def test_answer_of_a_memory_kill_says_so_and_why() -> None:
    outcome = replace(OUTCOME, verdict=Verdict.MEMORY, exit_code=None, signal=9, notes=("512 MiB",))
    got = answer(replace(EXECUTION, outcome=outcome))
    assert (got["oom_killed"], got["signal"], got["error"]) == (True, 9, "512 MiB")


def test_answer_of_a_program_that_kills_itself_is_not_an_oom_kill() -> None:
    outcome = replace(OUTCOME, verdict=Verdict.SIGNALLED, exit_code=None, signal=9)
    got = answer(replace(EXECUTION, outcome=outcome))
    assert (got["oom_killed"], got["error"]) == (False, "signalled")


@pytest.mark.parametrize("verdict", list(Verdict))
def test_status_is_success_only_for_ok_and_timeout_only_for_time(verdict: Verdict) -> None:
    wanted = {"ok": "success", "wall_time": "timeout", "cpu_time": "timeout"}
    assert status_of(verdict) == wanted.get(verdict.value, "error")


def test_answer_brings_files_as_base64_with_type_from_the_name() -> None:
    got = answer(replace(EXECUTION, files={"plots/a.png": b"\x89PNG", "blob": b""}))
    first, second = got["artifacts"]
    assert (first["name"], first["mime_type"], first["size"]) == ("plots/a.png", "image/png", 4)
    assert base64.b64decode(first["content_b64"]) == b"\x89PNG"
    assert second["mime_type"] == "application/octet-stream"


def test_answer_counts_what_was_cut() -> None:
    outcome = replace(OUTCOME, verdict=Verdict.OUTPUT, truncated=Truncated(stdout=7))
    cut = answer(replace(EXECUTION, outcome=outcome))["truncated"]
    assert cut == {"stdout": 7, "stderr": 0, "display": 0}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Event(1, "stdout", text="hi\n"), {"seq": 1, "type": "stdout", "text": "hi\n"}),
        (Event(2, "stderr", text="oh"), {"seq": 2, "type": "stderr", "text": "oh"}),
        (
            Event(3, "display", data={"image/png": "aGk=", "text/plain": "<Figure>"}),
            {
                "seq": 3, "type": "image", "image": "aGk=", "text": "<Figure>",
                "data": {"image/png": "aGk=", "text/plain": "<Figure>"},
            },
        ),
        (
            Event(4, "display", data={"text/html": "<b>"}),
            {"seq": 4, "type": "display", "data": {"text/html": "<b>"}},
        ),
        (
            Event(5, "result", data={"text/plain": "2", "image/png": "eA=="}),
            {
                "seq": 5, "type": "result", "text": "2",
                "data": {"text/plain": "2", "image/png": "eA=="},
            },
        ),
        (
            Event(6, "error", error=ExecutionError("KeyError", "'x'", "Traceback")),
            {"seq": 6, "type": "error", "error": "Traceback", "name": "KeyError", "value": "'x'"},
        ),
        (Event(7, "value", value={"a": 1}), {"seq": 7, "type": "value", "value": {"a": 1}}),
    ],
)  # fmt: skip
def test_event_line_has_the_plain_key_of_its_kind(event: Event, line: dict[str, object]) -> None:
    assert event_line(event) == line


def test_end_line_carries_verdict_and_outcome() -> None:
    line = event_line(Event(9, "end", outcome=OUTCOME))
    assert (line["type"], line["verdict"]) == ("end", "ok")
    assert line["outcome"] == OUTCOME.as_json()


def test_end_without_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="event 9"):
        event_line(Event(9, "end"))


def _every_error() -> list[errors.CellwallError]:
    extra: dict[str, dict[str, object]] = {
        "CapacityError": {"retry_after_s": 1.0},
        "NodeUnreachable": {"retry_after_s": 1.0},
        "FileError": {"reason": "not_found"},
        "PortError": {"reason": "refused"},
    }
    made: list[errors.CellwallError] = []
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.CellwallError):
            if kind is errors.HostUnsupported:
                made.append(errors.HostUnsupported("userns", "what failed", remedy="do this"))
            elif kind is errors.QuotaExceeded:
                full = errors.QuotaExceeded(
                    "running", "what failed", retry_after_s=1.0, remedy="do this"
                )
                made.append(full)
            else:
                more = next((extra[k.__name__] for k in kind.__mro__ if k.__name__ in extra), {})
                made.append(kind(message="what failed", remedy="do this", **more))
    return made


@pytest.mark.parametrize("error", _every_error(), ids=lambda e: type(e).__name__)
def test_every_error_of_ours_fits_the_envelope(error: errors.CellwallError) -> None:
    assert error_envelope(error, "r1") == {
        "error": {
            "code": error.code, "message": "what failed", "remedy": "do this", "request_id": "r1",
        }
    }  # fmt: skip


def test_an_unexpected_exception_does_not_leak_its_text() -> None:
    text = json.dumps(error_envelope(RuntimeError("/secret/path token=abc"), "r2"))
    assert "secret" not in text
    assert "abc" not in text
    assert '"code": "internal"' in text


def test_one_line_is_one_line_of_strict_json() -> None:
    hostile = {"s": "a\nb\u2028\ud800", "n": [float("nan"), float("inf"), 1.5], "t": (1,)}
    line = one_line(hostile)
    assert "\n" not in line
    assert line.isascii()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    back = json.loads(line, parse_constant=refuse)
    assert back["n"] == [None, None, 1.5]
    assert back["s"] == hostile["s"]
