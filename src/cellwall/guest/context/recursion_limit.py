"""How deep caller code may call: no less than under `python3`, whatever of ours lies below it.

Used by `context/main.py`. CPython counts the frames of its whole stack, and up to a few dozen of
them are ours, so the limit is higher by as many; who asks for it, or sets it, is told and sets what
it would be elsewhere. To count ours exactly would cost each program two dozen pages.
"""

from __future__ import annotations

import sys

_get, _set = sys.getrecursionlimit, sys.setrecursionlimit
_BELOW = 32
"""Frames of ours below caller code: 20 in a jail, and most in cells with a magic."""


def getrecursionlimit() -> int:
    """Return the current value of the recursion limit."""
    return _get() - _BELOW


def setrecursionlimit(limit: int, /) -> None:
    """Set the maximum depth of the Python interpreter stack to n."""
    _set(limit + _BELOW if limit > 0 else limit)


def prepare() -> None:
    """Make room below, in a fork-server or where there is none."""
    if sys.getrecursionlimit is not getrecursionlimit:
        _set(_get() + _BELOW)
        sys.getrecursionlimit, sys.setrecursionlimit = getrecursionlimit, setrecursionlimit
