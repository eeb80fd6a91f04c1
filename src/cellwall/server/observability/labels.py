"""Values of metric labels: names of cellwall or of the operator, bounded, and never secrets.

The invariant: whatever callers send, one label has at most `MOST_VALUES` different values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.server.observability.redaction import Redactor

MOST_VALUES = 64
"""Number of different values of one label; further ones are counted as `other`."""
OTHER = "other"


class Labels:
    """Bounds the values of one label."""

    def __init__(self, redactor: Redactor, known: Iterable[str] = ()) -> None:
        """`known` values always have their own series."""
        self._redactor = redactor
        self._shown = {value: value for value in known}

    def __call__(self, value: str) -> str:
        """Return the label value that stands for `value`."""
        shown = self._shown.get(value)
        if shown is None:
            if len(self._shown) >= MOST_VALUES:
                return OTHER
            shown = self._shown[value] = self._redactor.clean(value)[:80]
        return shown
