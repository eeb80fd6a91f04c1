"""Stages of an execution, for protocols that report compile and run apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from cellwall.model.execution import Execution

TIMES = frozenset({Verdict.WALL_TIME, Verdict.CPU_TIME})
FAILURES = frozenset({Verdict.SANDBOX_ERROR, Verdict.CANCELLED, Verdict.INTERRUPTED})
"""Ends that are not the program's: of the sandbox, or of the server."""


def ended_in_compile(execution: Execution) -> bool:
    """Report whether the compile stage failed, so that the program did not run."""
    stage = execution.compilation
    return (
        stage is not None and stage.outcome is not None and stage.outcome.verdict is not Verdict.OK
    )
