"""Versions of npm packages in order, and clauses of a rule about them.

Semantic Versioning 2.0, whose order of early versions is another one than Python's. Build metadata
does not count. The functions are pure.
"""

from __future__ import annotations

import re
from functools import lru_cache

Key = tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]

_VERSION = re.compile(
    r"(\d{1,16})(?:\.(\d{1,16}))?(?:\.(\d{1,16}))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)


@lru_cache(maxsize=65_536)
def key(version: str) -> Key | None:
    """Return what orders versions; None if it is none. Parts that are not written are 0."""
    matched = _VERSION.fullmatch(version)
    if matched is None:
        return None
    numbers = (int(matched[1]), int(matched[2] or 0), int(matched[3] or 0))
    early = matched[4].split(".") if matched[4] else []
    # Numbers come before words, and among themselves in the order of their values.
    parts = tuple(
        (False, int(part), "") if part.isdigit() and len(part) <= 16 else (True, 0, part)
        for part in early
    )
    return numbers, not early, parts


def order(version: str) -> Key:
    """Return what orders versions; of what is none, that of the lowest."""
    return key(version) or ((0, 0, 0), False, ())


def is_early(version: str) -> bool:
    """Report whether it is a version before its release, such as 2.0.0-rc.1."""
    found = key(version)
    return found is not None and not found[1]


def holds(operator: str, wanted: str, version: str) -> bool:
    """Report whether `version` satisfies one clause; never true of what is no version."""
    have, bound = key(version), key(wanted)
    if have is None or bound is None:
        return False
    return {
        "==": have == bound,
        "!=": have != bound,
        ">=": have >= bound,
        "<=": have <= bound,
        ">": have > bound,
        "<": have < bound,
    }[operator]
