"""Answers of Piston: from an execution to the results of its stages.

Pure. `output` has both streams in the order in which they came. The invariant: status, signal and
message follow the verdict; the texts for ends that Piston knows are those of its jail.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.refusal import Refusal
from cellwall.apps.doors.stages import FAILURES, ended_in_compile
from cellwall.model.errors import AccessDenied, CellwallError
from cellwall.model.outcome import Verdict
from cellwall.server.core.errors import headers_of, status_of

if TYPE_CHECKING:
    from cellwall.apps.doors.piston.runtimes import PistonRuntime
    from cellwall.model.execution import Execution
    from cellwall.model.outcome import Outcome

_KILLED = "SIGKILL"
_TIMES = {
    Verdict.WALL_TIME: "Time limit exceeded (wall clock)",
    Verdict.CPU_TIME: "Time limit exceeded",
}
_KILLS = frozenset({Verdict.MEMORY, Verdict.PROCESSES, Verdict.DISK, Verdict.SYSCALL})


def answer_of(execution: Execution, runtime: PistonRuntime, output: str) -> dict[str, Any]:
    """Return the answer of `execute`; `output` is that of the program's own stage."""
    body: dict[str, Any] = {}
    stage = execution.compilation
    if ended_in_compile(execution):
        body["compile"] = _stage(execution.outcome, execution.stdout, execution.stderr, output)
        body["run"] = dict(body["compile"])
    else:
        if stage is not None:
            text = stage.stdout + stage.stderr
            body["compile"] = _stage(stage.outcome, stage.stdout, stage.stderr, text)
        body["run"] = _stage(execution.outcome, execution.stdout, execution.stderr, output)
    shown = runtime.as_json()
    return {**body, "language": shown["language"], "version": shown["version"]}


def _stage(outcome: Outcome | None, stdout: str, stderr: str, output: str) -> dict[str, Any]:
    """Return a stage's result; without an outcome it is a compile that was done before."""
    result: dict[str, Any] = {
        "stdout": stdout,
        "stderr": stderr,
        "output": output,
        "code": 0,
        "signal": None,
        "message": None,
        "status": None,
        "cpu_time": 0,
        "wall_time": 0,
        "memory": 0,
    }
    if outcome is not None:
        result |= end_of(outcome)
        usage = outcome.usage
        result["cpu_time"] = round(usage.cpu_s * 1000)
        result["wall_time"] = round(usage.wall_s * 1000)
        result["memory"] = usage.memory_peak_bytes
    return result


def end_of(outcome: Outcome) -> dict[str, Any]:
    """Return `code`, `signal`, `status` and `message` of an end."""
    verdict, note = outcome.verdict, "; ".join(outcome.notes) or None
    if verdict in FAILURES:
        return _end("XX", note)
    if verdict in _TIMES:
        return _end("TO", _TIMES[verdict], _KILLED)
    if verdict is Verdict.OUTPUT:
        is_stdout = bool(outcome.truncated.stdout)
        name = "stdout" if is_stdout else "stderr"
        return _end("OL" if is_stdout else "EL", f"{name} length exceeded", _KILLED)
    if verdict in _KILLS:
        return _end("SG", note, _KILLED)
    return _own_end(outcome)


def _own_end(outcome: Outcome) -> dict[str, Any]:
    if outcome.signal is not None:
        return _end("SG", f"Caught fatal signal {outcome.signal}", signal_name(outcome.signal))
    if outcome.verdict is Verdict.OK:
        return {"code": 0, "signal": None, "status": None, "message": None}
    code = outcome.status if outcome.exit_code is None else outcome.exit_code
    message = f"Exited with error status {code}"
    return {"code": code, "signal": None, "status": "RE", "message": message}


def _end(status: str, message: str | None, name: str | None = None) -> dict[str, Any]:
    return {"code": None, "signal": name, "status": status, "message": message}


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def refusal(error: Exception) -> Refusal:
    """Return an error as `{"message": …}`; a failure of the server has no text."""
    status = 403 if isinstance(error, AccessDenied) else status_of(error)
    if status in {404, 405}:
        text, status = "Not Found", 404
    elif isinstance(error, CellwallError) and (status < 500 or status in {503, 507}):
        text = str(error)
    else:
        text, status = "Internal Server Error", 500
    return Refusal(status, {"message": text}, headers_of(error))
