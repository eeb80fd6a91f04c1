"""How deep JSON of others may be nested.

Used wherever it is decoded or taken over. What is decoded on a short stack is encoded on a longer
one, and there the recursion limit would be an error of ours. The invariant: `MOST_LEVELS` is so far
below the limit that what was taken in can be encoded again anywhere.
"""

from __future__ import annotations

from typing import Any

MOST_LEVELS = 200
"""Of lists and objects in each other. A server's schemas take no more either, pydantic's bound."""

MOST_ARGUMENT_LEVELS = 100
"""Of a program's arguments: what returns them, in something of its own, stays below the other."""


def is_nested(value: object, most_levels: int = MOST_LEVELS) -> bool:
    """Report whether lists and objects are in each other for more than `most_levels` levels."""
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
