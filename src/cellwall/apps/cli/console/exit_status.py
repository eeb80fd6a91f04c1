"""The exit status of `cellwall run`, from an outcome.

Pure. Not the verdict itself (the engine's), not the number that stands for an end (the outcome's
`status`) and not what is printed about results. Invariant: a program that ended by itself keeps its
own status, except for 0 where files it was to leave did not all come back: that is 125.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.outcome import INTERRUPTED, LOST, OUR_FAILURE

if TYPE_CHECKING:
    from cellwall.model.outcome import Outcome

__all__ = ["INTERRUPTED", "OUR_FAILURE", "exit_status", "explanation", "lost"]


def exit_status(outcome: Outcome) -> int:
    """Return the status our process ends with."""
    return OUR_FAILURE if not outcome.status and lost(outcome) else outcome.status


def explanation(outcome: Outcome) -> str | None:
    """Return one line on an end that was not the program's own, or lost files, else None."""
    if outcome.is_its_own:
        return " ".join("; ".join(lost(outcome)).split()) or None
    notes = " ".join("; ".join(outcome.notes).split())
    return f"{outcome.verdict.value}: {notes}" if notes else outcome.verdict.value


def lost(outcome: Outcome) -> list[str]:
    """Return the notes on files that were there and did not come back."""
    return [note for note in outcome.notes if note.startswith(LOST)]
