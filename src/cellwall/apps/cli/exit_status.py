"""The exit status of `cellwall run`, from an outcome.

Pure. Not the verdict itself (the engine's) and not what is printed about results. Invariant: a
program that ended by itself keeps its own status, whatever number it chose; the statuses below
stand for ends that were not its own.

    124   wall time          the status `timeout` uses
    125   cellwall failed    the program's end is unknown; stderr has step, object and remedy
    130   interrupted or cancelled
    137   memory             the status of a kernel's OOM kill
    128+n ended by signal n
    1     any other limit: CPU time, processes, disk, output, system call

125 is also the end of a program that did well, if files it was to leave did not all come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.model.outcome import LOST, Verdict

if TYPE_CHECKING:
    from cellwall.model.outcome import Outcome

OUR_FAILURE = 125
INTERRUPTED = 130

_OWN_END = frozenset({Verdict.OK, Verdict.EXCEPTION, Verdict.NONZERO_EXIT, Verdict.SIGNALLED})

_FIXED = {
    Verdict.WALL_TIME: 124,
    Verdict.MEMORY: 137,
    Verdict.SANDBOX_ERROR: OUR_FAILURE,
    Verdict.CANCELLED: INTERRUPTED,
    Verdict.INTERRUPTED: INTERRUPTED,
}


def exit_status(outcome: Outcome) -> int:
    """Return the status our process ends with."""
    status = _of_end(outcome)
    return OUR_FAILURE if not status and lost(outcome) else status


def _of_end(outcome: Outcome) -> int:
    fixed = _FIXED.get(outcome.verdict)
    if fixed is not None:
        return fixed
    if outcome.verdict not in _OWN_END:
        return 1
    if outcome.signal is not None:
        return 128 + outcome.signal
    if outcome.exit_code is not None:
        return outcome.exit_code
    return 0 if outcome.verdict is Verdict.OK else 1


def explanation(outcome: Outcome) -> str | None:
    """Return one line on an end that was not the program's own, or lost files, else None."""
    if outcome.verdict in _OWN_END:
        return " ".join("; ".join(lost(outcome)).split()) or None
    notes = " ".join("; ".join(outcome.notes).split())
    return f"{outcome.verdict.value}: {notes}" if notes else outcome.verdict.value


def lost(outcome: Outcome) -> list[str]:
    """Return the notes on files that were there and did not come back."""
    return [note for note in outcome.notes if note.startswith(LOST)]
