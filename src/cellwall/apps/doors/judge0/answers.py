"""Answers of Judge0: from executions to a status, and the fields that a client asks for.

Pure. The invariants: the status follows the verdict alone, and a wrong answer is one only after the
program has ended well.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.stages import FAILURES, TIMES, ended_in_compile
from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cellwall.model.execution import Execution

ACCEPTED, WRONG, TOO_SLOW, NOT_COMPILED, FILE_SIZE, NONZERO, OTHER, INTERNAL = (
    3, 4, 5, 6, 8, 11, 12, 13,
)  # fmt: skip
_BY_SIGNAL = {
    signal.SIGSEGV: 7,
    signal.SIGXFSZ: FILE_SIZE,
    signal.SIGFPE: 9,
    signal.SIGABRT: 10,
}
_BY_VERDICT = {
    Verdict.MEMORY: OTHER,
    Verdict.OUTPUT: OTHER,
    Verdict.PROCESSES: OTHER,
    Verdict.SYSCALL: OTHER,
    Verdict.DISK: FILE_SIZE,
}
_TIMES = {
    Verdict.WALL_TIME: "Time limit exceeded (wall clock)",
    Verdict.CPU_TIME: "Time limit exceeded",
}
Facts = dict[str, Any]


def result_of(
    executions: Sequence[Execution], expected: str | None, merged: str | None = None
) -> Facts:
    """Return the result of a submission from its runs, of which the last one counts.

    `merged`: both streams in the order of writing, where the submission asked for that.
    """
    last = executions[-1]
    if ended_in_compile(last):
        text = last.stderr or last.stdout
        if last.verdict in TIMES:
            text = "Compilation time limit exceeded."
        return {**_nothing(), "status_id": NOT_COMPILED, "compile_output": text or None}
    stdout = last.stdout if merged is None else merged
    status, message = _status_of(last, stdout, expected)
    stage = last.compilation
    warnings = None if stage is None else (stage.stdout + stage.stderr) or None
    count = len(executions)
    cpu_s = sum(each.outcome.usage.cpu_s for each in executions) / count
    wall_s = sum(each.outcome.usage.wall_s for each in executions) / count
    peak = sum(each.outcome.usage.memory_peak_bytes for each in executions) / count
    return {
        **_nothing(),
        "status_id": status,
        "stdout": stdout or None,
        "stderr": (last.stderr or None) if merged is None else None,
        "compile_output": warnings,
        "message": message,
        "exit_code": last.exit_code,
        "exit_signal": last.outcome.signal,
        "time": f"{cpu_s:.3f}",
        "wall_time": f"{wall_s:.3f}",
        "memory": round(peak / 1024),
    }


def failure(message: str) -> Facts:
    """Return the result of a submission that the server could not judge."""
    return {**_nothing(), "status_id": INTERNAL, "message": message}


def _nothing() -> Facts:
    names = (
        "stdout", "stderr", "compile_output", "message", "exit_code", "exit_signal", "time",
        "wall_time", "memory",
    )  # fmt: skip
    return dict.fromkeys(names)


def _status_of(execution: Execution, stdout: str, expected: str | None) -> tuple[int, str | None]:
    verdict, outcome = execution.verdict, execution.outcome
    note = "; ".join(outcome.notes) or None
    if verdict in FAILURES:
        return INTERNAL, note
    if verdict in _TIMES:
        return TOO_SLOW, _TIMES[verdict]
    if verdict in _BY_VERDICT:
        return _BY_VERDICT[verdict], note
    if outcome.signal is not None:
        number = next((each for sig, each in _BY_SIGNAL.items() if sig == outcome.signal), OTHER)
        return number, f"Caught fatal signal {outcome.signal}"
    if verdict is not Verdict.OK:
        return NONZERO, f"Exited with error status {outcome.status}"
    return (ACCEPTED if expected is None or is_same(stdout, expected) else WRONG), None


def is_same(output: str, expected: str) -> bool:
    """Compare without white space at the ends of lines and at the end."""
    return _stripped(output) == _stripped(expected)


def _stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
