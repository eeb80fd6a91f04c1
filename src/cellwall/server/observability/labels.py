"""Values of metrics' labels: names of ours or of the operator's, bounded, and never secrets.

The invariant: whatever callers send, there are at most `MOST_VALUES` different ones of a kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.server.observability.redaction import Redactor

MOST_VALUES = 64
"""Different values of one label; later ones are counted as `other`."""
OTHER = "other"


class Labels:
    """Bounds the values of one label."""

    def __init__(self, redactor: Redactor, known: Iterable[str] = ()) -> None:
        """`known` values always have their own series."""
        self._redactor = redactor
        self._shown = {value: value for value in known}

    def __call__(self, value: str) -> str:
        """Return what stands for `value` in a label."""
        shown = self._shown.get(value)
        if shown is None:
            if len(self._shown) >= MOST_VALUES:
                return OTHER
            shown = self._shown[value] = self._redactor.clean(value)[:80]
        return shown
