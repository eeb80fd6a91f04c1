"""What pip, uv and npm print when a package is not to be had: one sentence each.

pip and uv print the reason phrase of a status line, npm the `error` of a JSON body; which status
makes which client do so at once is in `broker`. The invariant: a sentence is one line of ASCII, and
nothing stands in it that a caller or a registry wrote but names and versions that were matched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cellwall.model.packages import Registry

_MOST_CHARACTERS = 300
_MOST_VERSIONS = 5
_MOST_REASONS = 4
_OTHER = re.compile(r"[^\x20-\x7e]+")

_REGISTRIES: dict[Registry, str] = {"pypi": "Python", "npm": "npm"}


def cleaned(text: str) -> str:
    """Return any text as a reason phrase: one short line of printable ASCII."""
    return _OTHER.sub(" ", text).strip()[:_MOST_CHARACTERS] or "no reason given"


def is_off(registry: Registry) -> str:
    """Of every package, where the policy does not name the registry."""
    return f"{_REGISTRIES[registry]} packages are off in this sandbox"


def no_index(registry: Registry) -> str:
    """Where the operator has configured none."""
    return f"no registry of {_REGISTRIES[registry]} packages is configured; ask the operator"


def unknown(registry: Registry, name: str) -> str:
    """Of a name that no registry knows."""
    return f"there is no {_REGISTRIES[registry]} package {name}: check the spelling"


def no_files(name: str) -> str:
    """Of a name that a registry knows, without anything to install."""
    return f"{name} has no files to install"


def trouble(name: str, why: str) -> str:
    """Of a name whose registry gave no usable answer; `why` is about the registry."""
    return f"{name} cannot be fetched from its registry now: {why}"


def broken(file_name: str, why: str) -> str:
    """Of a file that did not come whole."""
    return f"{file_name} cannot be fetched: {why}"


NOTHING = "there is nothing here but /simple/<name>/, /npm/<name> and the files they name"
ONLY_READ = "packages can be fetched here, and nothing else"


def not_listed(name: str) -> str:
    """Of a file that the page no longer lists."""
    return f"the registry lists no such file of {name}"


def name_refused(name: str, why: str) -> str:
    """Of a package that the policy refuses in every version; `why` is `DENIED` or `NOT_ALLOWED`."""
    return f"{name} is refused: {why}"


def refused(name: str, version: str, why: str) -> str:
    """Of a version that the policy refuses; `why` is one of the following."""
    return f"{name} {version} is refused: {why}"


DENIED = "it is on the list of packages that are denied here"
NOT_ALLOWED = "it is not on the list of packages that are allowed here"
ONLY_SOURCE = (
    "this is its source, and only wheels are allowed here; choose a version with a wheel for this "
    "Python"
)


def too_young(least_days: float) -> str:
    """Of a file that the registry has had for too short a time."""
    return f"it is younger than {_days(least_days)}, which is not allowed here"


def of_unknown_age(least_days: float) -> str:
    """Of a file about which the registry does not say since when it is there."""
    return (
        f"younger than {_days(least_days)} is not allowed here, and its registry does not say how "
        "old it is"
    )


def too_large(largest_mb: int) -> str:
    """Of a file beyond the policy's bound."""
    return f"its file is larger than {largest_mb} MiB"


def page_too_large(name: str, largest_mb: int) -> str:
    """Of a page beyond the policy's bound."""
    return f"{name} is refused: what its registry says about it is larger than {largest_mb} MiB"


def of_versions(name: str, reasons: Mapping[str, str]) -> str:
    """Say of several refused versions why; `reasons` is why by version, the newest first."""
    grouped: dict[str, list[str]] = {}
    for version, why in reasons.items():
        grouped.setdefault(why, []).append(version)
    if len(reasons) == 1:
        return refused(name, *next(iter(reasons.items())))
    if len(grouped) == 1:
        return f"{name} {_some(list(reasons))} are refused: {next(iter(grouped))}"
    parts = [f"{_some(versions)}: {why}" for why, versions in list(grouped.items())[:_MOST_REASONS]]
    return f"{name} is refused; " + "; ".join(parts)


def _some(versions: Sequence[str]) -> str:
    more = len(versions) - _MOST_VERSIONS
    return ", ".join(versions[:_MOST_VERSIONS]) + (f" and {more} more versions" if more > 0 else "")


def _days(count: float) -> str:
    return f"{count:g} day" + ("" if count == 1 else "s")
