"""A registry of the operator's: where it is, what to say there, and which names it is asked for.

Values only. The invariant: credentials are in `authorization` and nowhere else, and that is neither
in a `repr` nor in an error.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

from cellwall.model.errors import UsageError
from cellwall.model.packages import REGISTRIES, PackageRule, Registry

_URL = re.compile(r"[\x21-\x7e]{1,2048}")
_PORTS = {"https": 443, "http": 80}
_KEYS = ("registry", "url", "names")

Origin = tuple[str, str, int]
"""Scheme, host in lower case, port."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One registry."""

    registry: Registry
    url: str
    """Below it are the packages; without credentials, ending in a slash."""
    authorization: str | None = field(default=None, repr=False)
    """Value of the header that goes to this registry's own origin only."""
    names: tuple[PackageRule, ...] = ()
    """Names that only this registry is asked for, and the only ones it is asked for. None: every
    name that no other one has to itself."""

    @classmethod
    def of(cls, value: object) -> Upstream:
        """Return the upstream of a JSON object with `registry`, `url`, and maybe `names`."""
        if not isinstance(value, Mapping) or set(value) - set(_KEYS):
            raise _wrong("it is no object with registry, url and names")
        registry, names = value.get("registry"), value.get("names", ())
        if registry not in REGISTRIES:
            raise _wrong(f"its registry is none of {', '.join(REGISTRIES)}")
        if isinstance(names, (str, Mapping)) or not isinstance(names, Iterable):
            raise _wrong("its names are no list")
        rules = tuple(PackageRule.of(f"{registry}:{name}") for name in names)
        if any(rule.clauses for rule in rules):
            raise _wrong("its names have versions")
        url, authorization = split_credentials(value.get("url"))
        return cls(registry, url, authorization, rules)

    @property
    def origin(self) -> Origin:
        """Return what its URL connects to."""
        return origin_of(self.url)

    def owns(self, name: str) -> bool:
        """Report whether it has this name to itself."""
        return any(rule.names(self.registry, name) for rule in self.names)


def asked_for(upstreams: Iterable[Upstream], registry: Registry, name: str) -> Sequence[Upstream]:
    """Return whom to ask for a name, in order: its owners, or else all that own no names."""
    fitting = [upstream for upstream in upstreams if upstream.registry == registry]
    owners = [upstream for upstream in fitting if upstream.owns(name)]
    return owners or [upstream for upstream in fitting if not upstream.names]


def split_credentials(url: object) -> tuple[str, str | None]:
    """Return a URL without its credentials and with a slash at its end, and their header."""
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise _wrong("its URL is no text, or has spaces or other than ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _wrong("its URL has no valid port or address") from None
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise _wrong("its URL is not of http or https")
    if parts.query or parts.fragment:
        raise _wrong("its URL has a query or a fragment")
    path = parts.path if parts.path.endswith("/") else parts.path + "/"
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
    return bare, authorization_of(url)


def authorization_of(url: str) -> str | None:
    """Return the header's value for the user and password in a URL; None: it has none."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def origin_of(url: str) -> Origin:
    """Return what a URL connects to."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS[parts.scheme]


def _wrong(why: str) -> UsageError:
    return UsageError(
        f"package registries: {why}",
        remedy='give each like {"registry": "pypi", "url": "https://packages.example.org/simple/"}',
    )
