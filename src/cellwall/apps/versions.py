"""Versions: the installed versions of cellwall and its dependencies, and which are too old.

Called by `doctor`. It is not a resolver: installers keep the bounds, but packages are changed
afterwards, and an old HTTP parser is an attack vector. The bounds are those of cellwall's own
package metadata.
"""

from __future__ import annotations

import platform
import re
import sqlite3
from collections.abc import Iterable, Iterator
from importlib import metadata

from cellwall.runtimes.base import Finding

_BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?\s*>=\s*([0-9.]+)")


def findings() -> list[Finding]:
    """Return one finding for cellwall and one for each package older than its bound."""
    try:
        own, needed = metadata.version("cellwall"), metadata.requires("cellwall") or []
    except metadata.PackageNotFoundError:
        return [Finding("versions", "CAUTION", "cellwall is not installed as a package", "")]
    words = f"cellwall {own}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return [Finding("versions", "PASS", words, ""), *_old(needed)]


def _old(needed: Iterable[str]) -> Iterator[Finding]:
    for requirement in needed:
        bound = _BOUND.match(requirement)
        installed = None if bound is None else _installed(bound[1])
        if bound is None or installed is None:
            continue  # a missing extra is reported when it is used
        if _numbers(installed) < _numbers(bound[2]):
            yield Finding(
                bound[1],
                "CAUTION",
                f"{installed}: older than {bound[2]}",
                f"pip install --upgrade '{bound[1]}>={bound[2]}'",
            )


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return `1.10.0rc1` as (1, 10, 0): enough to tell older from newer."""
    found = re.match(r"[0-9.]+", version)
    return () if found is None else tuple(int(word) for word in found[0].split(".") if word)
