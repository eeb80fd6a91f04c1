"""Answers of Dify's sandbox service: from an execution or an error to `code`, `message`, `data`.

Pure. Dify's client takes `data.stdout` as the result if `data.error` is empty. The invariants:
stdout is what the program wrote and nothing else, and a program that a limit ended has an error.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.dify.binding import BindingError
from cellwall.apps.doors.refusal import Refusal
from cellwall.model.errors import AccessDenied, CapacityError, CellwallError
from cellwall.model.outcome import Verdict
from cellwall.server.core.errors import HttpError, headers_of, status_of

if TYPE_CHECKING:
    from cellwall.model.execution import Execution

FAILED = "the sandbox failed"
_CAUSES = {
    Verdict.WALL_TIME: "error: timeout\n",
    Verdict.CPU_TIME: "error: timeout\n",
    Verdict.MEMORY: "error: signal: killed\n",
    Verdict.SYSCALL: "error: operation not permitted\n",
    Verdict.OUTPUT: "error: output limit exceeded\n",
    Verdict.DISK: "error: no space left on device\n",
    Verdict.PROCESSES: "error: too many processes\n",
}
_FAILURES = frozenset({Verdict.SANDBOX_ERROR, Verdict.CANCELLED, Verdict.INTERRUPTED})
_GO_NAMES = {
    signal.SIGHUP: "hangup",
    signal.SIGINT: "interrupt",
    signal.SIGILL: "illegal instruction",
    signal.SIGTRAP: "trace/breakpoint trap",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "floating point exception",
    signal.SIGKILL: "killed",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGPIPE: "broken pipe",
    signal.SIGALRM: "alarm clock",
    signal.SIGTERM: "terminated",
}
"""Names of signals as Go's `os` package prints them; others are `signal N`."""


def success(data: object) -> dict[str, Any]:
    """Return the answer with `data`."""
    return {"code": 0, "message": "success", "data": data}


def failure(code: int, message: str) -> dict[str, Any]:
    """Return the answer about an error."""
    return {"code": code, "message": message, "data": None}


def answer_of(execution: Execution) -> dict[str, Any]:
    """Return the answer about a program that ran."""
    if execution.verdict in _FAILURES:
        return failure(-500, FAILED)
    exit_code, cause = _end_of(execution)
    data = {
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "error": "",
        "exit_code": exit_code,
    }
    if exit_code != 0 or cause:
        data["error"] = f"process exited with code {exit_code}\n{cause}{execution.stderr}"
    return success(data)


def _end_of(execution: Execution) -> tuple[int, str]:
    """Return the exit code, -1 for any end by a signal or a limit, and the cause of the end."""
    if execution.verdict in _CAUSES:
        return -1, _CAUSES[execution.verdict]
    number = execution.outcome.signal
    if number is not None:
        name = next((text for sig, text in _GO_NAMES.items() if sig == number), f"signal {number}")
        return -1, f"error: signal: {name}\n"
    return execution.status, ""


def refusal(error: Exception) -> Refusal:
    """Return an error; one without a key has no body, one for an unknown path is text."""
    status, headers = status_of(error), headers_of(error)
    if isinstance(error, HttpError) and error.status == 401:
        return Refusal(401, None, headers)
    if status in {404, 405}:
        return Refusal(404, None, headers, "404 page not found", "text/plain")
    return Refusal(*_failed(error, status), headers)


def _failed(error: Exception, status: int) -> tuple[int, dict[str, Any]]:
    if isinstance(error, BindingError):
        return error.status, failure(-400, str(error))
    if isinstance(error, CapacityError):
        return 503, failure(-503, "Too many requests")
    if isinstance(error, AccessDenied):
        return 403, failure(-403, str(error))
    if isinstance(error, CellwallError) and status < 500:
        return (200 if status == 400 else status), failure(-400, str(error))
    return 200, failure(-500, FAILED)
