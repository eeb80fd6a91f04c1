"""Refusals: what is wrong, and with which status each client puts it on the screen at once.

The table behind the statuses is in `broker`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Kinds of refusals, each with the status that its page has."""

    REFUSED = 451
    MISSING = 404
    TROUBLE = 424


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets no package."""

    kind: Kind
    sentence: str
    words: str = ""
    """The same in a version's letters, for pip."""

    @property
    def on_a_page(self) -> int:
        """Status of an index page; uv says itself that there is no such package."""
        return self.kind.value

    @property
    def on_a_file(self) -> int:
        """Status of a Python file."""
        return 424 if self.kind is Kind.TROUBLE else 403

    @property
    def on_npm(self) -> int:
        """Status of everything of npm, which adds wrong advice to 403 and 404."""
        return 424 if self.kind is Kind.TROUBLE else 451
