"""What a registry lists of one package, the same for Python and npm.

Values only, read by `python_page` and `npm_page`. The invariant: nothing here was taken over from a
registry unchecked; a `url` goes upstream and never into an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

from cellwall.model.packages import Registry

MOST_FILES = 200_000
STRONG = {"sha512": 128, "sha384": 96, "sha256": 64}
"""Algorithms whose digest names a file, the strongest first, and their hexadecimal digits."""
WEAK = {"sha224": 56, "sha1": 40, "md5": 32}
"""Algorithms that are checked, but do not name a file: two files can be made that share one."""

_YEAR_9999 = 253_370_764_800
_HEX = re.compile(r"[0-9a-f]+")
_URL = re.compile(r"[\x21-\x7e]{1,4096}")
_WHOLE_URL = re.compile(r"https?://[A-Za-z0-9.-]+/[A-Za-z0-9._~%+!@/-]*")
"""The usual link of large registries; taking it apart is most of the time of reading a page."""


class Malformed(ValueError):
    """A registry's page that is not what it should be; the text says how, without quoting it."""


@dataclass(frozen=True, slots=True)
class Release:
    """One file of a registry, as far as rules are about it."""

    registry: Registry
    name: str
    """Normal name."""
    version: str
    is_source: bool
    uploaded_at: float | None
    """Seconds since the epoch; None: the registry does not say."""
    size: int | None
    """Bytes; None: the registry does not say."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What the content of a file must have."""

    algorithm: str
    hex: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One file that a registry lists."""

    release: Release
    file_name: str
    url: str
    strong: Digest | None = None
    weak: Digest | None = None
    requires_python: str | None = None
    yanked: str | None = None
    """Reason for which its author has withdrawn it, maybe empty; None: he has not."""
    has_metadata: bool = False
    metadata: Digest | None = None
    texts: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    """What pages of ours say of it as long as it is not refused, by their kind, once written."""


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that a registry lists of one package."""

    registry: Registry
    name: str
    files: Mapping[str, Listed]
    """By file name, in the registry's order."""
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of npm: what a package needs and has, by version, without `dist`."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of npm: versions that have a name, such as `latest`."""


def digests(found: Mapping[str, object]) -> tuple[Digest | None, Digest | None]:
    """Return the strongest strong and the strongest weak digest of those a registry names."""
    return _strongest(found, STRONG), _strongest(found, WEAK)


def _strongest(found: Mapping[str, object], sizes: Mapping[str, int]) -> Digest | None:
    for algorithm, size in sizes.items():
        digest = found.get(algorithm)
        if not isinstance(digest, str):
            continue
        if len(digest) == size and _HEX.fullmatch(digest.lower()):
            return Digest(algorithm, digest.lower())
    return None


def seconds_of(moment: object) -> float | None:
    """Return an ISO 8601 date as seconds since the epoch; None if it is none."""
    if not isinstance(moment, str) or len(moment) > 40:
        return None
    try:
        found = datetime.fromisoformat(moment)
        seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < _YEAR_9999 else None


def moment_of(seconds: float) -> str:
    """Return seconds since the epoch as registries write a date."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def file_url(page_url: str, url: object) -> str | None:
    """Return the whole URL of a link on a page; None if it is none over http or https."""
    if not isinstance(url, str) or not _URL.fullmatch(url):
        return None
    if _WHOLE_URL.fullmatch(url):
        return url
    try:
        joined = urldefrag(urljoin(page_url, url)).url
        parts = urlsplit(joined)
        is_fit = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return joined if is_fit else None
