"""Packages: which ones a sandbox may install, as plain values that doors and proxy share.

Versions are compared by `egress.packages.rules`, which has a library for it; here a rule is only
taken apart and checked. The invariant: what is not understood is a `UsageError`, and a list that is
empty allows nothing; a list that is absent (`None`) is another thing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

from cellwall.model.errors import UsageError

Registry = Literal["pypi", "npm"]
REGISTRIES: tuple[Registry, ...] = ("pypi", "npm")

_MOST_RULES = 10_000
_MOST_CHARACTERS = 300
_MOST_STARS = 2
"""Number of `*` in a name: the time of a match grows with its power."""
_NAME = {
    "pypi": re.compile(r"[A-Za-z0-9*](?:[A-Za-z0-9._*-]*[A-Za-z0-9*])?"),
    "npm": re.compile(r"(?:@[A-Za-z0-9*~_-][A-Za-z0-9*._~-]*/)?[A-Za-z0-9*~_-][A-Za-z0-9*._~-]*"),
}
_VERSION = {
    # The normal form of PEP 440 and of Semantic Versioning; a rule needs no other spelling.
    "pypi": re.compile(
        r"(?:\d+!)?\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[a-z0-9.]*[a-z0-9])?"
    ),
    "npm": re.compile(
        r"\d+(?:\.\d+){0,2}|\d+\.\d+\.\d+-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*", re.ASCII
    ),
    "both": re.compile(r"\d+(?:\.\d+){0,2}", re.ASCII),
}
_CLAUSE = re.compile(r"\s*(==|!=|>=|<=|~=|>|<)\s*([^\s,]+)\s*")
_TWO_PARTS = re.compile(r"(?:\d+!)?\d+\.\d")
_RULE = re.compile(r"(?:(pypi|npm):)?\s*([^\s<>=!~,;\[]+)\s*(.*)", re.DOTALL)
_ORDERED = {"<", ">", "<=", ">="}


@dataclass(frozen=True, slots=True)
class PackageRule:
    """One line of a list: a name or a pattern of names, and maybe versions of it."""

    name: str
    """A name, in which `*` stands for any characters but `/`."""
    clauses: tuple[tuple[str, str], ...] = ()
    """Operator and version of each; all have to hold. None: every version."""
    registry: Registry | None = None
    """None: it is meant for every registry."""

    @classmethod
    def of(cls, text: object) -> PackageRule:
        """Return the rule of `numpy`, `numpy>=1.20,<2`, `npm:@scope/*` and such."""
        if not isinstance(text, str) or not text.isascii() or len(text) > _MOST_CHARACTERS:
            raise _wrong_rule(text, f"it is not ASCII text of up to {_MOST_CHARACTERS} characters")
        matched = _RULE.fullmatch(text.strip())
        if matched is None or not text.isprintable():
            raise _wrong_rule(text, "it does not begin with a name")
        registry = next((each for each in REGISTRIES if each == matched[1]), None)
        name, versions = matched[2], matched[3]
        kinds: tuple[Registry, ...] = REGISTRIES if registry is None else (registry,)
        if not any(_NAME[kind].fullmatch(name) for kind in kinds):
            raise _wrong_rule(text, f"{name!r} is no name of a package")
        if name.count("*") > _MOST_STARS:
            raise _wrong_rule(text, f"it has more than {_MOST_STARS} stars")
        clauses = tuple(_clauses(text, versions, registry))
        return cls(normal_name(name) if registry == "pypi" else name, clauses, registry)

    def names(self, registry: Registry, name: str) -> bool:
        """Report whether this rule is about the package of that normal name."""
        if self.registry not in {None, registry}:
            return False
        own = normal_name(self.name) if registry == "pypi" else self.name
        return own == name or ("*" in own and _pattern(own).fullmatch(name) is not None)

    def __str__(self) -> str:
        """Return it as a caller would write it."""
        prefix = f"{self.registry}:" if self.registry else ""
        return (
            prefix + self.name + ",".join(operator + version for operator, version in self.clauses)
        )


@dataclass(frozen=True, slots=True)
class PackagePolicy:
    """What a sandbox may install. The default is nothing."""

    registries: tuple[Registry, ...] = ()
    """Registries that are on."""
    allow: tuple[PackageRule, ...] | None = None
    """What may be installed, dependencies too. None: everything that is not denied; an empty list:
    nothing."""
    deny: tuple[PackageRule, ...] = ()
    """What may not be installed, whatever is allowed."""
    min_age_days: float = 0
    """Days that a file has to be in its registry. A file whose age is unknown is then refused."""
    within: tuple[PackageRule, ...] | None = None
    """The operator's own list beside `allow`: what may be installed is on both. None: none."""
    allow_sdists: bool = False
    """Whether source distributions may be fetched; building one runs its code inside."""
    largest_file_mb: int = 1024
    """MiB of one file."""
    largest_page_mb: int = 32
    """MiB of what a registry says about one package."""

    def __post_init__(self) -> None:
        """Raise `UsageError` on a value that is out of its bounds."""
        if set(self.registries) - set(REGISTRIES) or len(set(self.registries)) < len(
            self.registries
        ):
            raise _wrong("registries", f"{list(self.registries)} are not known ones, each once")
        _check_number("min_age_days", self.min_age_days, 0, 3650)
        _check_number("largest_file_mb", self.largest_file_mb, 1, 65_536)
        _check_number("largest_page_mb", self.largest_page_mb, 1, 1024)
        if not isinstance(self.allow_sdists, bool):
            raise _wrong("allow_sdists", f"{self.allow_sdists!r} is neither true nor false")

    @classmethod
    def of(cls, value: object) -> PackagePolicy:
        """Return the policy of a JSON object with this class's fields as keys, all optional.

        `True` stands for everything, `False` for nothing.
        """
        if isinstance(value, PackagePolicy):
            return value
        if isinstance(value, bool):
            return ANY_PACKAGE if value else NO_PACKAGE
        if not isinstance(value, Mapping):
            raise UsageError(
                f"packages: {type(value).__name__} is no policy",
                remedy='give true, or an object: {"registries": ["pypi"], "allow": ["numpy>=2"]}',
            )
        known = {field.name for field in fields(cls)}
        if unknown := sorted(str(key) for key in value if key not in known):
            raise UsageError(
                f"packages: unknown key {unknown[0]!r}",
                remedy=f"known keys: {', '.join(field.name for field in fields(cls))}",
            )
        given: dict[str, Any] = {key: value[key] for key in known if key in value}
        if "registries" in given:
            given["registries"] = _texts("registries", given["registries"])
        for key in ("allow", "deny", "within"):
            if given.get(key) is not None:
                given[key] = tuple(map(PackageRule.of, _texts(key, given[key])))
        if "deny" in given and given["deny"] is None:
            raise _wrong("deny", "it is null; null means everything where it is allowed")
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """Return the JSON object of which `of` makes this policy."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "registries": list(self.registries),
            "allow": None if self.allow is None else list(map(str, self.allow)),
            "within": None if self.within is None else list(map(str, self.within)),
            "deny": list(map(str, self.deny)),
        }

    @property
    def is_none(self) -> bool:
        """Whether nothing can be installed, because no registry is on."""
        return not self.registries

    def narrowed(self, by: PackagePolicy) -> PackagePolicy:
        """Return what both allow: `by` is the operator's, and this the caller's.

        Raises `UsageError` if this one names a registry that is off for the operator. Done once
        more, it changes nothing.
        """
        off = [each for each in self.registries if each not in by.registries]
        if self.within not in (None, by.allow):
            raise _wrong("within", "it is the operator's")
        if off and self != ANY_PACKAGE:
            raise UsageError(
                f"packages: {off[0]} packages are off here",
                remedy="leave that registry out, or have the operator set CELLWALL_PACKAGES",
            )
        return PackagePolicy(
            tuple(each for each in self.registries if each in by.registries),
            self.allow,
            self.deny + tuple(rule for rule in by.deny if rule not in self.deny),
            max(self.min_age_days, by.min_age_days),
            by.allow,
            self.allow_sdists and by.allow_sdists,
            min(self.largest_file_mb, by.largest_file_mb),
            min(self.largest_page_mb, by.largest_page_mb),
        )

    def __str__(self) -> str:
        """Return it in a few words."""
        if self.is_none:
            return "no packages"
        few = "" if self.allow is None else ": " + ", ".join(map(str, self.allow[:10]))
        return f"packages of {' and '.join(self.registries)}{few}"

    @property
    def largest_file_bytes(self) -> int:
        """`largest_file_mb` in bytes."""
        return self.largest_file_mb * 1024 * 1024

    @property
    def largest_page_bytes(self) -> int:
        """`largest_page_mb` in bytes."""
        return self.largest_page_mb * 1024 * 1024


def normal_name(name: str) -> str:
    """Return a Python package's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@lru_cache(maxsize=4096)
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("[^/]*".join(map(re.escape, name.split("*"))))


def _clauses(text: str, versions: str, registry: Registry | None) -> Iterable[tuple[str, str]]:
    """Yield operator and version of each clause."""
    for part in versions.split(",") if versions else ():
        matched = _CLAUSE.fullmatch(part)
        if matched is None:
            raise _wrong_rule(text, f"{part.strip()!r} is no operator with a version")
        yield _checked(text, matched[1], matched[2], registry)


def _checked(text: str, operator: str, version: str, registry: Registry | None) -> tuple[str, str]:
    if registry is None and (operator == "~=" or not _VERSION["both"].fullmatch(version)):
        raise _wrong_rule(
            text,
            f"{operator}{version} is not read alike by all; write pypi: or npm: before the name",
        )
    if registry == "pypi" and operator in {"==", "!="}:
        version_alone = version.removesuffix(".*")
        is_local_prefix = version_alone != version and "+" in version
    else:
        version_alone, is_local_prefix = version, operator in _ORDERED and "+" in version
    if not _VERSION[registry or "both"].fullmatch(version_alone) or is_local_prefix:
        raise _wrong_rule(text, f"{version!r} is no version for {operator}")
    if operator == "~=" and (registry == "npm" or "+" in version or not _TWO_PARTS.match(version)):
        raise _wrong_rule(text, f"~={version} names no range")
    return operator, version


def _texts(key: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong(key, f"{value!r} is no list")
    found = tuple(value)
    if len(found) > _MOST_RULES or not all(isinstance(each, (str, PackageRule)) for each in found):
        raise _wrong(key, f"it is not a list of up to {_MOST_RULES} texts")
    return tuple(map(str, found))


def _check_number(key: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_whole = key == "min_age_days" or isinstance(value, int)
    if not is_number or not is_whole or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type, operator]
        raise _wrong(key, f"{value!r} is not a number from {low:g} to {high:g}")


def _wrong(key: str, why: str) -> UsageError:
    remedies = {
        "registries": f"give a list of {' and '.join(REGISTRIES)}",
        "allow": 'give a list such as ["numpy", "pandas>=2"], or null for everything',
        "deny": 'give a list such as ["numpy<1.20"], or []',
        "allow_sdists": "give true or false",
        "within": "leave it out",
    }
    return UsageError(f"packages.{key}: {why}", remedy=remedies.get(key, "give such a number"))


def _wrong_rule(text: object, why: str) -> UsageError:
    return UsageError(
        f"packages: rule {text!r}: {why}",
        remedy="write it like `numpy`, `numpy>=1.20,<2`, `pypi:torch==2.*` or `npm:@scope/*`",
    )


NO_PACKAGE = PackagePolicy()
ANY_PACKAGE = PackagePolicy(REGISTRIES)
"""Every package that is a wheel, or of npm."""
