"""An exception that became an answer: told once, and without the frames that it passed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from cellwall.model.errors import CapacityError, NotFound, SandboxBroken, UsageError
from cellwall.server.core.error_log import drop_traceback, log_failure
from cellwall.server.core.errors import HttpError
from cellwall.server.executions.job import Job


def _raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        if cause is not None:
            raise error from _raised(cause)
        raise error
    except Exception as found:  # noqa: BLE001 - whatever it is, the test gets it back
        return found


def _frames(error: BaseException | None) -> list[str]:
    found = []
    while error is not None:
        step = error.__traceback__
        while step is not None:
            found.append(step.tb_frame.f_code.co_name)
            step = step.tb_next
        error = error.__cause__ or error.__context__
    return found


def test_frames_of_all_that_led_to_it_go() -> None:
    error = _raised(NotFound("here"), KeyError("before"))
    assert _frames(error) == ["_raised", "_raised"]  # the control
    drop_traceback(error)
    assert _frames(error) == []
    assert isinstance(error.__cause__, KeyError)


def test_frames_of_a_group_go_and_circles_end() -> None:
    inner, outer = _raised(ValueError("inner")), ValueError("outer")
    group = ExceptionGroup("both", [inner, outer])
    inner.__context__ = group
    drop_traceback(group)
    assert _frames(outer) == []
    assert inner.__traceback__ is None


@pytest.mark.parametrize(
    ("error", "level", "has_place"),
    [
        (ZeroDivisionError("a bug"), logging.ERROR, True),
        (SandboxBroken("a sandbox"), logging.ERROR, False),
        (CapacityError("full", retry_after_s=1), logging.WARNING, False),
        (HttpError(500, "x", "on purpose"), None, None),
        (NotFound("nothing"), None, None),
        (UsageError("wrong"), None, None),
    ],
)
def test_the_operator_hears_once_of_what_is_no_refusal(
    caplog: pytest.LogCaptureFixture, error: Exception, level: int | None, has_place: bool | None
) -> None:
    for _ in range(2):
        log_failure(_raised(error), "r1")
    told: list[Any] = [(each.levelno, bool(each.exc_info)) for each in caplog.records]
    assert told == ([] if level is None else [(level, has_place)])


async def _failed(error: Exception) -> Job:
    job = Job("e1", "alice", "r1", 1000)
    job.fail(error)
    return job


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), NotFound("nothing")])
def test_what_is_kept_of_a_failure_holds_no_frame_and_is_told(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Also of one for which nobody comes: a background execution."""
    job = asyncio.run(_failed(_raised(error)))
    assert job.error is error
    assert _frames(error) == []
    is_bug = isinstance(error, ZeroDivisionError)
    assert len(caplog.records) == is_bug
    assert [bool(each.exc_info) for each in caplog.records] == [True] * is_bug
