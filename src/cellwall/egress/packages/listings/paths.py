"""What a request asks for: its target taken apart, and the targets that our own pages name.

The functions are pure. The invariant: every name that leaves here has been matched as a whole
against the grammar of its registry, so that it can stand in a URL, a file name or a sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from cellwall.model.packages import Registry, normal_name

UNHASHED = "unhashed"
"""Stands for the digest where the registry promises none."""

_MOST_CHARACTERS = 2048
_PYPI_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_NPM_NAME = re.compile(
    r"(?:@[A-Za-z0-9~_-][A-Za-z0-9._~-]{0,212}/)?[A-Za-z0-9~_-][A-Za-z0-9._~-]{0,212}"
)
_NPM_VERSION = re.compile(
    r"\d{1,16}\.\d{1,16}\.\d{1,16}(?:-[0-9A-Za-z.-]{1,128})?(?:\+[0-9A-Za-z.-]{1,128})?", re.ASCII
)
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}")
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128}|" + UNHASHED)


@dataclass(frozen=True, slots=True)
class SimplePage:
    """What files there are of a Python package."""

    name: str
    registry: Registry = "pypi"


@dataclass(frozen=True, slots=True)
class Packument:
    """What versions there are of an npm package."""

    name: str
    registry: Registry = "npm"


@dataclass(frozen=True, slots=True)
class PackageFile:
    """One file of a package, or the metadata beside it."""

    registry: Registry
    name: str
    """Normal name of the package."""
    version: str
    digest: str | None
    """Hexadecimal digits that our page named; None: no promise, or the page is another's."""
    file_name: str
    """As the page spells it; of npm, made of name and version."""
    is_metadata: bool = False


Ask = SimplePage | Packument | PackageFile


def ask_of(target: str) -> Ask | None:
    """Return what a request's target asks for; None if that is nothing we have."""
    path = _path(target)
    if path is None:
        return None
    match path.split("/"):
        case ["", "simple", name] | ["", "simple", name, ""]:
            found = unquote(name)
            return SimplePage(normal_name(found)) if _PYPI_NAME.fullmatch(found) else None
        case ["", "files", "pypi", digest, name] if _DIGEST.fullmatch(digest):
            return _python_file(digest, unquote(name))
        case ["", "npm", *rest]:
            path = unquote("/".join(rest))
            # npm 9 puts its registry's path before that of our links; no name begins so.
            return _npm(path) or _npm(path.removeprefix("npm/"))
        case _:
            return None


def _path(target: str) -> str | None:
    """Return the path of a target in its origin or absolute form, without its query."""
    if len(target) > _MOST_CHARACTERS or not target.isascii() or not target.isprintable():
        return None
    if target.lower().startswith("http://"):
        target = "/" + target[len("http://") :].partition("/")[2]
    return target.partition("?")[0] if target.startswith("/") else None


def _npm(path: str) -> Ask | None:
    name, dash, file_name = path.partition("/-/")
    if not _NPM_NAME.fullmatch(name):
        return None
    if not dash:
        return Packument(name)
    base = name.rpartition("/")[2] + "-"
    version = file_name.removeprefix(base).removesuffix(".tgz")
    if file_name != f"{base}{version}.tgz" or not _NPM_VERSION.fullmatch(version):
        return None
    return PackageFile("npm", name, version, None, f"{name}@{version}.tgz")


def _python_file(digest: str, file_name: str) -> PackageFile | None:
    whole = file_name.removesuffix(".metadata")
    parsed = name_and_version(whole)
    if parsed is None:
        return None
    is_metadata = whole != file_name
    return PackageFile("pypi", parsed[0], str(parsed[1]), _named(digest), whole, is_metadata)


def _named(digest: str) -> str | None:
    return None if digest == UNHASHED else digest


def is_npm(name: str, version: str) -> bool:
    """Report whether both are what npm's registry may have."""
    return bool(_NPM_NAME.fullmatch(name) and _NPM_VERSION.fullmatch(version))


def name_and_version(file_name: str) -> tuple[str, Version] | None:
    """Return the normal name and the version of a wheel or source distribution; None of others."""
    if not _FILE_NAME.fullmatch(file_name):
        return None
    try:
        if file_name.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(file_name)
        elif file_name.endswith((".tar.gz", ".zip")):
            name, version = parse_sdist_filename(file_name)
        else:
            return None
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None
    return (str(name), version) if _PYPI_NAME.fullmatch(name) else None


def python_target(digest: str | None, file_name: str) -> str:
    """Return the target under which our page offers a Python file."""
    # Of the characters that a file's name may have, these two; a page has thousands of them.
    quoted = file_name.replace("+", "%2B").replace("!", "%21")
    return f"/files/pypi/{digest or UNHASHED}/{quoted}"


def npm_target(name: str, version: str) -> str:
    """Return the target under which our packument offers a tarball.

    It is below the packument, as in every registry: npm makes such a target of the links in a lock
    file that was written elsewhere, and of others when it is told to replace their hosts.
    """
    return f"/npm/{quote(name, safe='@/')}/-/{quote(name.rpartition('/')[2])}-{quote(version)}.tgz"


def npm_path(name: str) -> str:
    """Return a package's path below a registry's URL."""
    return quote(name, safe="@")
