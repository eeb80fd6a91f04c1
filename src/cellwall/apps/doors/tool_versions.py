"""Versions of languages as protocols show them: three numbers out of what a tool prints."""

from __future__ import annotations

import re

Version = tuple[int, int, int]
_NUMBER = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?")


def version_in(text: str) -> Version:
    """Return the first version in what a tool prints about itself; zeros if there is none."""
    found = re.search(r"\d{1,9}\.\d{1,9}(?:\.\d{1,9})?", text) or re.search(r"\d{1,9}", text)
    numbers = None if found is None else _NUMBER.fullmatch(found[0])
    if numbers is None:
        return 0, 0, 0
    major, minor, patch = (int(each or 0) for each in numbers.groups())
    return major, minor, patch


def shown(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))
