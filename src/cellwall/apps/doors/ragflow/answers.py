"""Answers of RAGFlow's executor manager: from an execution or an error to the object of `/run`.

Pure; every answer has all keys. The invariant: the status follows the verdict alone. The executor
manager guesses some of it from stderr, where a program may write what it likes.
"""

from __future__ import annotations

import mimetypes
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors import exchange, validation
from cellwall.apps.doors.ragflow.programs import ARTIFACTS
from cellwall.apps.doors.refusal import Refusal
from cellwall.model.errors import CapacityError, CellwallError, QuotaExceeded, UsageError
from cellwall.model.outcome import Verdict
from cellwall.server.core.errors import HttpError, headers_of, status_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.model.execution import Execution

MOST_ARTIFACTS = 10
ARTIFACT_BYTES = 10 * 1024 * 1024
_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".svg", ".pdf", ".csv", ".json", ".html"})
_NO_KEY = {"detail": "Missing or invalid sandbox executor API token"}
_BUSY = "Container pool is busy"
_RATE = "Too many requests, please try again later"
_TIME = ("resource_limit_exceeded", -124, "Execution timeout", "resource_limit_type", "time")
_MEMORY = "Memory limit exceeded (killed by OOM)"
_ENDS: dict[Verdict, tuple[str, int, str, str, str | None]] = {
    Verdict.WALL_TIME: _TIME,
    Verdict.CPU_TIME: _TIME,
    Verdict.MEMORY: ("resource_limit_exceeded", -137, _MEMORY, "resource_limit_type", "memory"),
    Verdict.OUTPUT: (
        "resource_limit_exceeded", -1, "Output limit exceeded", "resource_limit_type", "output",
    ),
    Verdict.DISK: (
        "resource_limit_exceeded", -1, "Disk limit exceeded", "resource_limit_type", None,
    ),
    Verdict.PROCESSES: (
        "resource_limit_exceeded", -1, "Process limit exceeded", "resource_limit_type", None,
    ),
    Verdict.SYSCALL: (
        "unauthorized_access", -1, "Operation not permitted", "unauthorized_access_type",
        "disallowed_syscall",
    ),
}  # fmt: skip
"""Ends by a limit: status, exit code, stderr, and the field and value of the kind."""
_FAILURES = frozenset({Verdict.SANDBOX_ERROR, Verdict.CANCELLED, Verdict.INTERRUPTED})


def answer_of(execution: Execution) -> dict[str, Any]:
    """Return the answer about a program that ran."""
    verdict = execution.verdict
    if verdict in _FAILURES:
        return failure(-3, "", "internal_error")
    usage = execution.outcome.usage
    facts = {
        **_empty(),
        "time_used_ms": round(usage.wall_s * 1000, 3),
        "memory_used_kb": usage.memory_peak_bytes // 1024 or None,
    }
    if verdict is Verdict.OK:
        return {
            **facts,
            "status": "success",
            "stdout": execution.stdout,
            "stderr": execution.stderr,
            "exit_code": 0,
            "artifacts": artifacts_of(execution.files),
            "result": {"present": True, "value": execution.result, "type": "json"},
        }
    if verdict in _ENDS:
        status, code, text, field, kind = _ENDS[verdict]
        return {**facts, "status": status, "exit_code": code, "stderr": text, field: kind}
    return {
        **facts,
        "status": "program_error",
        "stderr": execution.stderr,
        "exit_code": execution.status,
        "runtime_error_type": "signalled" if verdict is Verdict.SIGNALLED else "nonzero_exit",
    }


def failure(exit_code: int, stderr: str, detail: str) -> dict[str, Any]:
    """Return the answer about a program that could not run."""
    return {
        **_empty(),
        "status": "program_runner_error",
        "stderr": stderr,
        "exit_code": exit_code,
        "detail": detail,
    }


def refusal(error: Exception, *, is_of_run: bool) -> Refusal:
    """Return an error: of a run as an answer about it, of anything else as FastAPI's."""
    if isinstance(error, HttpError) and error.status == 401:
        return Refusal(401, _NO_KEY, headers_of(error))
    if is_of_run and not isinstance(error, (HttpError, validation.Unprocessable)):
        about = None if status_of(error) in {404, 405} else _refused(error)
        if about is not None:
            return Refusal(200, about)
    return validation.refusal(error)


def _refused(error: Exception) -> dict[str, Any] | None:
    """Return the answer about a failure of the server; None if the error is the client's."""
    if isinstance(error, QuotaExceeded):
        return failure(-429, _RATE, _RATE)
    if isinstance(error, CapacityError):
        return failure(-10, _BUSY, "no_available_container")
    if isinstance(error, UsageError):
        return failure(-999, str(error), "unhandled_exception")
    return failure(-3, "", "internal_error") if isinstance(error, CellwallError) else None


def artifacts_of(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return the files directly in the folder that the protocol lets through, by name."""
    found: list[dict[str, Any]] = []
    for path, data in sorted(files.items()):
        name = path.removeprefix(f"{ARTIFACTS}/")
        ending = f".{name.rpartition('.')[2].lower()}"
        is_let_through = "/" not in name and not name.startswith(".") and ending in _ENDINGS
        if is_let_through and 1 <= len(data) <= ARTIFACT_BYTES and len(found) < MOST_ARTIFACTS:
            found.append(
                {
                    "name": name,
                    "mime_type": mimetypes.guess_type(name)[0] or "application/octet-stream",
                    "size": len(data),
                    "content_b64": exchange.as_base64(data),
                }
            )
    return found


def _empty() -> dict[str, Any]:
    return {
        "status": "",
        "stdout": "",
        "stderr": "",
        "exit_code": 0,
        "detail": None,
        "time_used_ms": None,
        "memory_used_kb": None,
        "resource_limit_type": None,
        "unauthorized_access_type": None,
        "runtime_error_type": None,
        "artifacts": [],
        "result": None,
    }
