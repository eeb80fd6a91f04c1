"""Executions as protocols report them: compile and run apart, both streams in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.outcome import Verdict

if TYPE_CHECKING:
    from cellwall.client.submitted import AsyncSubmitted
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


async def text_of(execution: AsyncSubmitted) -> str:
    """Return stdout and stderr in the order in which they came, as far as events are kept."""
    pieces = [
        event.text or "" async for event in execution.events() if event.kind in {"stdout", "stderr"}
    ]
    return "".join(pieces)
