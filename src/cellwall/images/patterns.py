"""Patterns of the operator: which images a caller of a server may name.

Pure. Who may name what is decided by the server; this module says whether one reference fits one
pattern. The invariant: an archive, which is a path of the server's disk, fits no pattern, and an
image of a Docker daemon only the pattern that is its own spelling.

    python:*                          every tag and digest of docker.io's `python`
    registry.example:5000/team/*      every image of `team/…` of that registry
    python:3.12-slim                  that tag alone
    python@sha256:…                   that digest alone
    *                                 every image of the listed registries
    docker://task                     that image of the machine's Docker daemon
    sha256:…                          the image of that id, however it came here
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from cellwall.images.reference import ById, InDaemon, InRegistry, Reference, parse
from cellwall.model.errors import UsageError

_EVERYTHING = "*"
_STAR = "cellwall-star"
"""Stands for `*` while the rest of a pattern is read by the grammar of names."""
_DEFAULT = "docker.io"
_LIBRARY = "library/"


@dataclass(frozen=True, slots=True)
class _Pattern:
    registry: str
    repository: re.Pattern[str]
    tag: re.Pattern[str] | None
    """None: every tag and every digest."""
    digest: str


def check_patterns(patterns: Iterable[str], where: str) -> None:
    """Raise `UsageError`, which begins with `where`, for a text that is no pattern."""
    for each in patterns:
        try:
            _read(each)
        except UsageError as error:
            raise UsageError(
                f"{where}: images has {each[:120]!r}, which is no pattern: {error.message}",
                remedy='give names such as "python:*", "registry.example:5000/team/*" or "*"',
            ) from None


def is_allowed(meant: Reference, patterns: Iterable[str]) -> bool:
    """Report whether one of the patterns permits what a caller means."""
    return any(_fits(meant, each) for each in patterns)


def _fits(meant: Reference, text: str) -> bool:
    pattern = _read(text)
    if isinstance(meant, InRegistry):
        if text == _EVERYTHING:
            return True
        return isinstance(pattern, _Pattern) and _is_like(meant, pattern)
    if isinstance(meant, (InDaemon, ById)):
        return pattern == meant
    return False


def _is_like(meant: InRegistry, pattern: _Pattern) -> bool:
    if (meant.registry or _DEFAULT) != pattern.registry:
        return False
    if not pattern.repository.fullmatch(_whole(meant.registry, meant.repository)):
        return False
    if pattern.digest:
        return meant.digest == pattern.digest
    if pattern.tag is None:
        return True
    return not meant.digest and pattern.tag.fullmatch(meant.tag) is not None


@lru_cache(maxsize=1024)
def _read(text: str) -> _Pattern | InDaemon | ById | None:
    """Return what a pattern says; None: everything of the listed registries."""
    if text == _EVERYTHING:
        return None
    if "*" not in text and not text.startswith(("/", ".")):
        meant = parse(text)
        if isinstance(meant, (InDaemon, ById)):
            return meant
    if _STAR in text or "://" in text:
        raise UsageError("it has a scheme")
    named = parse(text.replace("*", _STAR))
    if not isinstance(named, InRegistry):
        raise UsageError("it is a path")
    if _STAR in named.registry:
        raise UsageError("a registry has no `*`")
    end = text.rpartition("/")[2]
    tag = None if ":" not in end or named.tag == _STAR else _glob(named.tag)
    repository = _whole(named.registry, named.repository)
    return _Pattern(named.registry or _DEFAULT, _glob(repository), tag, named.digest)


def _whole(registry: str, repository: str) -> str:
    """Return a repository with the folder that docker.io's official images have."""
    is_short = (registry or _DEFAULT) == _DEFAULT and "/" not in repository
    return _LIBRARY + repository if is_short else repository


def _glob(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(re.escape(_STAR), ".*"))
