"""Answers of SandboxFusion: from executions to results of stages and the status of all of them.

Pure. The invariant: a program that a limit ended is never `Success`. SandboxFusion has a status for
time alone; the message names any other limit.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors import exchange, validation
from cellwall.apps.doors.refusal import Refusal
from cellwall.apps.doors.stages import FAILURES, TIMES, ended_in_compile
from cellwall.model.errors import NodeLost
from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cellwall.model.execution import Compilation, Execution
    from cellwall.model.outcome import Outcome

RUN_CODE, RUN_NOTEBOOK = "/run_code", "/run_jupyter"
Answer = dict[str, Any]
_LIMITS = frozenset(
    {Verdict.MEMORY, Verdict.OUTPUT, Verdict.DISK, Verdict.PROCESSES, Verdict.SYSCALL}
)
FINISHED, TIMED_OUT, BROKEN = "Finished", "TimeLimitExceeded", "Error"


def code_answer(execution: Execution, fetched: Sequence[str]) -> Answer:
    """Return the answer of `/run_code` about a program; `fetched` are the paths asked for."""
    compiled = None if execution.compilation is None else _compiled(execution.compilation)
    ran = None
    if not ended_in_compile(execution):
        ran = _stage(execution.outcome, execution.stdout, execution.stderr)
    status, message = _status([each for each in (compiled, ran) if each is not None])
    if status != "SandboxError" and execution.verdict in _LIMITS:
        status, message = "Failed", "; ".join(execution.outcome.notes)
    return {
        "status": status,
        "message": message,
        "compile_result": compiled,
        "run_result": ran,
        "executor_pod_name": None,
        "files": _files(execution.files, fetched),
    }


def code_failure(message: str) -> Answer:
    """Return the answer of `/run_code` about a program that could not run."""
    return {
        "status": "SandboxError",
        "message": message,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }


def refusal(error: Exception, path: str) -> Refusal:
    """Return an error as FastAPI does; a program whose node is lost is one that could not run."""
    if isinstance(error, NodeLost) and path == RUN_CODE:
        return Refusal(200, code_failure(str(error)))
    if isinstance(error, NodeLost) and path == RUN_NOTEBOOK:
        return Refusal(200, notebook_answer("SandboxError", None, [], {}, str(error)))
    return validation.refusal(error)


def notebook_answer(
    status: str, driver: Answer | None, cells: Sequence[Answer], files: Answer, message: str = ""
) -> Answer:
    """Return the answer of `/run_jupyter`."""
    return {
        "status": status,
        "message": message,
        "driver": driver,
        "cells": list(cells),
        "executor_pod_name": None,
        "files": files,
    }


def driver_of(status: str, seconds: float) -> Answer:
    """Return the result of what drives a notebook: here the server."""
    return _result(status, seconds, 0 if status == FINISHED else None, "", "")


def cell_of(execution: Execution) -> Answer:
    """Return the result of one cell; Jupyter has no traceback in stderr."""
    error, stderr = execution.error, execution.stderr
    errors: list[Answer] = []
    if error is not None:
        stderr = stderr.removesuffix(error.traceback)
        lines = error.traceback.splitlines()
        errors = [{"ename": error.name, "evalue": error.value, "traceback": lines}]
    elif execution.verdict is not Verdict.OK:
        why = "; ".join(execution.outcome.notes)
        errors = [{"ename": execution.verdict.value, "evalue": why, "traceback": []}]
    return {
        "stdout": execution.stdout,
        "stderr": stderr,
        "display": [dict(bundle) for bundle in execution.results],
        "error": errors,
    }


def _compiled(stage: Compilation) -> Answer:
    if stage.outcome is None:  # an earlier compile of the same program is used
        return _result(FINISHED, 0.0, 0, stage.stdout, stage.stderr)
    return _stage(stage.outcome, stage.stdout, stage.stderr)


def _stage(outcome: Outcome, stdout: str, stderr: str) -> Answer:
    seconds = outcome.usage.wall_s
    if outcome.verdict in FAILURES:
        return _result(BROKEN, seconds, None, stdout, "; ".join(outcome.notes))
    if outcome.verdict in TIMES:
        return _result(TIMED_OUT, seconds, None, stdout, stderr)
    return _result(FINISHED, seconds, _return_code(outcome), stdout, stderr)


def _return_code(outcome: Outcome) -> int:
    """Return the code as Python's `subprocess` has it: a signal is its negative number."""
    if outcome.signal is not None:
        return -outcome.signal
    return outcome.exit_code if outcome.exit_code is not None else outcome.status


def _result(
    status: str, seconds: float, return_code: int | None, stdout: str, stderr: str
) -> Answer:
    return {
        "status": status,
        "execution_time": round(seconds, 6),
        "return_code": return_code,
        "stdout": stdout,
        "stderr": stderr,
    }


def _status(stages: Sequence[Answer]) -> tuple[str, str]:
    for stage in stages:
        if stage["status"] == BROKEN:
            return "SandboxError", stage["stderr"]
    is_well = all(stage["status"] == FINISHED and stage["return_code"] == 0 for stage in stages)
    return ("Success" if is_well else "Failed"), ""


def _files(files: Mapping[str, bytes], fetched: Sequence[str]) -> Answer:
    found = {path: files.get(path, files.get(posixpath.normpath(path))) for path in fetched}
    return {path: exchange.as_base64(data) for path, data in found.items() if data is not None}
