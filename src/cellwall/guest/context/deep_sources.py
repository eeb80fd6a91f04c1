"""Sources that nest deeper than a syntax tree may, compiled as `python3` compiles them.

Loaded by `program.py` and `cell.py` with the first RecursionError of a compilation. A source that
is compiled directly may nest three times as deep as calls may (COMPILER_STACK_FRAME_SCALE in
CPython's symtable.c). Compiled from a syntax tree, whose last expression is taken out, it may nest
only as deep as calls.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import TypeVar

    Body = TypeVar("Body")

_SCALE = 3


def compiled(
    split: Callable[[], tuple[Body, CodeType | None]], whole: Callable[[], CodeType]
) -> tuple[Body | CodeType, CodeType | None]:
    """Return the code that `split` makes, or if it cannot, that of `whole` without a last value."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit * _SCALE)
    try:
        return split()
    except RecursionError:
        pass
    finally:
        sys.setrecursionlimit(limit)
    return whole(), None
