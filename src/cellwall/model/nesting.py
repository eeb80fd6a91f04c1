"""Nesting: how deeply received JSON may be nested.

Used wherever it is decoded or accepted. A value decoded on a short stack is encoded on a longer
one, where the recursion limit would be a failure of cellwall. The invariant: `MOST_LEVELS` is so
far below the limit that an accepted value can be encoded again anywhere.
"""

from __future__ import annotations

from typing import Any

MOST_LEVELS = 200
"""Maximum number of nested lists and objects. A server's schemas accept no more either: pydantic's
bound."""

MOST_ARGUMENT_LEVELS = 100
"""Maximum number of levels of a program's arguments: an object that returns them nested stays below
`MOST_LEVELS`."""


def is_nested(value: object, most_levels: int = MOST_LEVELS) -> bool:
    """Report whether lists and objects are nested for more than `most_levels` levels."""
    level: list[Any] = [value] if isinstance(value, (dict, list, tuple)) else []
    for _ in range(most_levels):
        if not level:
            return False
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, (dict, list, tuple))
        ]
    return bool(level)
