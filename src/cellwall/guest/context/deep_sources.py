"""Sources nested deeper than Python's own objects for syntax can be, compiled as `python3` does.

Loaded by `program.py` and `cell.py` with the first RecursionError of a compilation. A source alone
may nest three times as deep as calls may (COMPILER_STACK_FRAME_SCALE in CPython's symtable.c), but
once, on the way back from the tree that its last expression is taken out of.
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
    """The code as `split` makes it, or as `whole` does, without a value, where that is refused."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit * _SCALE)
    try:
        return split()
    except RecursionError:
        pass
    finally:
        sys.setrecursionlimit(limit)
    return whole(), None
