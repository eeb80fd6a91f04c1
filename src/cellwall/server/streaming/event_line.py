"""One event as it is sent and as it is kept: a number, a kind, one line of JSON.

Lines wait in `spool` and `overflow` and get their frames in `streams`. The invariant: a line
without a number is a gap record, and says which numbers are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cellwall.wire.answer import one_line


@dataclass(frozen=True, slots=True)
class Line:
    """One event."""

    seq: int | None
    """None for a gap record, which has no number of its own."""
    kind: str
    text: str
    """Strict JSON without a line end."""


def gap(after: int, following: int) -> Line:
    """Return the record saying that the events between `after` and `following` are gone."""
    value = {"type": "gap", "after": after, "next": following, "lost": following - after - 1}
    return Line(None, "gap", one_line(value))


def unknown_gap(after: int, following: int, facts: Mapping[str, Any]) -> Line:
    """Return a gap record where it is not known how many events there were; `facts` say why."""
    value = {"type": "gap", "after": after, "next": following, "lost": None, **facts}
    return Line(None, "gap", one_line(value))


def with_gaps(lines: Iterable[Line], after: int) -> list[Line]:
    """Return lines with a gap record wherever numbers are missing."""
    found: list[Line] = []
    for line in lines:
        if line.seq is not None and line.seq > after + 1:
            found.append(gap(after, line.seq))
        found.append(line)
        after = line.seq or after
    return found
