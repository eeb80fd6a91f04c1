"""Selectors of versions as npm's semver has them: `*`, `3`, `3.x`, `^3.10`, `>=3 <4`, `1 || 2`.

Pure. Not the whole of semver: no pre-releases and no ranges with a hyphen. The invariant: what
cannot be read matches no version.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from cellwall.apps.doors.tool_versions import Version

_TERM = re.compile(
    r"(?P<sign>>=|<=|>|<|=|\^|~>?)?\s*v?(?P<major>\d{1,9}|[xX*])"
    r"(?:\.(?P<minor>\d{1,9}|[xX*]))?(?:\.(?P<patch>\d{1,9}|[xX*]))?(?=\s|$)\s*"
)
_MOST_CHARACTERS = 100
_LAST = 10**9


def matches(selector: str, version: Version) -> bool:
    """Report whether a version fits the selector."""
    if len(selector) > _MOST_CHARACTERS:
        return False
    return any(_fits_all(part.strip(), version) for part in selector.split("||"))


def _fits_all(text: str, version: Version) -> bool:
    position = 0
    while position < len(text):
        term = _TERM.match(text, position)
        if term is None:
            return False
        if not _fits(term, version):
            return False
        position = term.end()
    return True


def _fits(term: re.Match[str], version: Version) -> bool:
    given: list[int] = []
    for each in (term["major"], term["minor"], term["patch"]):
        if each is None or not each.isdecimal():
            break
        given.append(int(each))
    low = _padded(given, 0)
    if not given:
        return term["sign"] not in {"<", ">"}
    return _SIGNS[term["sign"] or "="](given, low, version)


def _padded(given: list[int], with_what: int) -> Version:
    major, minor, patch = (*given, *(3 - len(given)) * [with_what])
    return major, minor, patch


def _caret(given: list[int], low: Version, version: Version) -> bool:
    fixed = next((n for n, each in enumerate(given) if each), len(given) - 1) + 1
    return low <= version and version[:fixed] == tuple(given[:fixed])


def _tilde(given: list[int], low: Version, version: Version) -> bool:
    fixed = min(2, len(given))
    return low <= version and version[:fixed] == tuple(given[:fixed])


_SIGNS: dict[str, Callable[[list[int], Version, Version], bool]] = {
    "=": lambda given, _, version: version[: len(given)] == tuple(given),
    "^": _caret,
    "~": _tilde,
    "~>": _tilde,
    ">=": lambda _, low, version: version >= low,
    "<": lambda _, low, version: version < low,
    ">": lambda given, _, version: version > _padded(given, _LAST),
    "<=": lambda given, _, version: version <= _padded(given, _LAST),
}
