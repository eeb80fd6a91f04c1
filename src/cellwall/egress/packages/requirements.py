"""Requirement lines of a caller: what may become arguments and files of an installer.

Pure. The installer runs inside the sandbox, so this is no wall: it is how a caller hears at once
what cannot work, and how no line becomes an option. The invariant: what is returned is a name,
maybe extras, versions and a marker, and never a place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement

from cellwall.model.errors import UsageError

_MOST_LINES = 1000
_MOST_CHARACTERS = 1000
_SCHEME = re.compile(r"(?:^|@\s*)[A-Za-z][A-Za-z0-9+.-]*:")
_ARCHIVE = re.compile(r"\.(?:whl|zip|egg|tar|tgz|tar\.(?:gz|bz2|xz|zst))$", re.IGNORECASE)


def check_requirements(lines: Iterable[object]) -> tuple[str, ...]:
    """Return the lines in a normal form; `UsageError` for the first that is no plain requirement.

    Plain: `requests`, `pandas[excel]>=2,<3`, `tomli; python_version < "3.11"`.
    """
    if isinstance(lines, (str, bytes)):
        raise UsageError("packages: one text is no list", remedy='give a list: ["requests"]')
    found = []
    for number, line in enumerate(lines):
        if number >= _MOST_LINES:
            raise UsageError(
                f"packages: there are more than {_MOST_LINES}", remedy="install them in parts"
            )
        found.append(_checked(line))
    return tuple(found)


def _checked(line: object) -> str:
    if not isinstance(line, str) or len(line) > _MOST_CHARACTERS:
        raise _wrong(line, f"it is not text of up to {_MOST_CHARACTERS} characters")
    if not line.isprintable():
        raise _wrong(line, "it has control characters or line ends in it")
    if not line.isascii():
        raise _wrong(line, "it has other than ASCII characters, which can look like others")
    text = line.strip()
    if (why := _not_plain(text)) is not None:
        raise _wrong(line, why)
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise _wrong(line, str(error).partition("\n")[0]) from None
    if any(each.operator == "===" for each in requirement.specifier):
        raise _wrong(line, "=== compares texts and not versions")
    return str(requirement)


def _not_plain(text: str) -> str | None:
    """Return what a line is if it is no requirement by name; None: it may be one."""
    before_marker = text.partition(";")[0]
    checks = (
        (not text, "it is empty"),
        (text.startswith("-"), "it is an option of an installer"),
        (text.startswith("#"), "it is a comment"),
        (re.search(r"\s-", text) is not None, "it has an option of an installer in it"),
        (_SCHEME.search(before_marker) is not None, "it names a URL and not a package by its name"),
        ("@" in before_marker, "it names a place and not a package by its name"),
        ("$" in before_marker or "\\" in text, "it has a variable or a line continuation in it"),
        (
            text.startswith((".", "~")) or "/" in before_marker,
            "it is a path and not a package's name",
        ),
        (
            _ARCHIVE.search(before_marker.strip()) is not None,
            "it is a file and not a package's name",
        ),
    )
    return next((why for is_so, why in checks if is_so), None)


def _wrong(line: object, why: str) -> UsageError:
    shown = ascii(line)
    return UsageError(
        f"packages: {shown[:80]}{'…' if len(shown) > 80 else ''}: {why}",
        remedy='write a name, maybe with versions: "requests", "pandas[excel]>=2,<3"',
    )
