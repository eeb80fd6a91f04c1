"""The recursion limit of caller code: no lower than under `python3`, whatever frames lie below it.

Used by `context/main.py`. CPython counts the frames of its whole stack, and up to a few dozen of
them are cellwall's, so the limit is higher by as many. Code that reads or sets the limit reads and
sets the value that it would have elsewhere. An exact count would cost each program two dozen pages.
"""

from __future__ import annotations

import sys

_get, _set = sys.getrecursionlimit, sys.setrecursionlimit
_BELOW = 32
"""Number of cellwall's frames below caller code: 20 in a jail, most in cells with a magic."""


def getrecursionlimit() -> int:
    """Return the current value of the recursion limit."""
    return _get() - _BELOW


def setrecursionlimit(limit: int, /) -> None:
    """Set the maximum depth of the Python interpreter stack to n."""
    _set(limit + _BELOW if limit > 0 else limit)


def prepare() -> None:
    """Raise the limit by these frames, in a fork-server or where there is none."""
    if sys.getrecursionlimit is not getrecursionlimit:
        _set(_get() + _BELOW)
        sys.getrecursionlimit, sys.setrecursionlimit = getrecursionlimit, setrecursionlimit
