"""The template of a call that names none.

Asked by the catalog, and before it by the command, which starts the processes of that template
ahead; so nothing is imported here. The invariant: both get the same answer of the same templates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_BEST = ("data", "python")
"""Templates by preference."""


def preferred(is_built: Callable[[str], bool]) -> str:
    """Return the first built template of those, or `python`, which is built within a moment."""
    return next((name for name in _BEST if is_built(name)), "python")
