"""Base files: the host files an image consists of, from installed packages and dependencies.

Reads dpkg's own records, never the network, and runs nothing. `layers` writes the layer. The
invariant: the result depends on installed packages and their versions only, so `identity` tells
whether an image made earlier equals one made now.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cellwall.model.errors import HostUnsupported

_STATUS = Path("/var/lib/dpkg/status")
_INFO = Path("/var/lib/dpkg/info")
_USEFUL = ("ca-certificates", "tzdata", "procps", "mime-support", "media-types", "libc-bin")
"""Packages included where installed: programs expect certificates and time zones."""
_LEFT_OUT = re.compile(
    r"/usr/share/(doc|doc-base|man|info|lintian|locale|bug|menu|bash-completion)/"
    r"|/usr/src/|/usr/lib/(systemd|udev|modules|firmware)/"
)
_FOR_COMPILERS = re.compile(r"/usr/include/|/usr/lib/\S+\.a$")
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/")


@dataclass(frozen=True, slots=True)
class Package:
    """One installed package, as recorded by dpkg."""

    name: str
    version: str
    architecture: str
    is_essential: bool
    depends: tuple[tuple[str, ...], ...]
    """Dependencies, each a choice of names of which one must be installed."""
    provides: tuple[str, ...]


def parse_status(text: str) -> dict[str, Package]:
    """Parse /var/lib/dpkg/status (deb-control(5)); return installed packages by name."""
    found: dict[str, Package] = {}
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            key, colon, value = line.partition(":")
            if colon and not line[0].isspace():
                fields[key] = value.strip()
        if fields.get("Status", "").endswith(" installed") and "Package" in fields:
            package = _package(fields)
            known = found.get(package.name)
            # Several architectures of one name: the essential or native one came first.
            if known is None:
                found[package.name] = package
    return found


def _package(fields: dict[str, str]) -> Package:
    wanted = [fields[name] for name in ("Pre-Depends", "Depends") if fields.get(name)]
    choices = [
        tuple(_bare(name) for name in each.split("|"))
        for text in wanted
        for each in text.split(",")
    ]
    provides = tuple(_bare(name) for name in fields.get("Provides", "").split(",") if name.strip())
    return Package(
        fields["Package"],
        fields.get("Version", ""),
        fields.get("Architecture", ""),
        fields.get("Essential") == "yes",
        tuple(choices),
        provides,
    )


def _bare(text: str) -> str:
    """Return a dependency without version and architecture."""
    return text.strip().split(" ", 1)[0].split(":", 1)[0]


def closure(packages: dict[str, Package], seeds: Iterable[str]) -> list[Package]:
    """Return `seeds`, the essential packages and all their dependencies, by name."""
    providers: dict[str, str] = {}
    for package in packages.values():
        for name in package.provides:
            providers.setdefault(name, package.name)
    queue = [p.name for p in packages.values() if p.is_essential]
    queue += [name for name in seeds if name in packages]
    taken: set[str] = set()
    while queue:
        name = queue.pop()
        if name in taken:
            continue
        taken.add(name)
        for choice in packages[name].depends:
            queue += [_installed(choice, packages, providers)] if choice else []
        queue = [each for each in queue if each]
    return [packages[name] for name in sorted(taken)]


def _installed(
    choice: tuple[str, ...], packages: dict[str, Package], providers: dict[str, str]
) -> str:
    for name in choice:
        if name in packages:
            return name
        if name in providers:
            return providers[name]
    return ""


def identity(packages: Iterable[Package]) -> str:
    """Return a digest that changes with any of the packages; 32 hexadecimal digits."""
    lines = sorted(f"{p.name} {p.version} {p.architecture}" for p in packages)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _lists(package: Package) -> Iterator[Path]:
    for name in (package.name, f"{package.name}:{package.architecture}"):
        path = _INFO / f"{name}.list"
        if path.is_file():
            yield path


def owners(paths: Iterable[str]) -> set[str]:
    """Return the packages that installed these files; links are followed."""
    wanted = {os.path.realpath(path) for path in paths}
    wanted |= {path.removeprefix("/usr") for path in wanted}
    found = set()
    for listing in _INFO.glob("*.list"):
        lines = set(listing.read_text(encoding="utf-8", errors="replace").splitlines())
        if lines & wanted:
            found.add(listing.name.removesuffix(".list").split(":")[0])
    return found


def _is_left_out(path: str, *, compiles: bool) -> bool:
    return bool(_LEFT_OUT.search(path) or (not compiles and _FOR_COMPILERS.search(path)))


def files_of(packages: Iterable[Package], *, compiles: bool = False) -> list[str]:
    """Return the system files of packages, real paths, sorted; compiled Python beside its source.

    Only existing files readable by all users; documentation is left out, and so are headers and
    static libraries unless a program in the image `compiles`.
    """
    found: set[str] = set()
    folders: dict[str, str] = {}
    for package in packages:
        for listing in _lists(package):
            for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith(_SYSTEM) and not _is_left_out(line, compiles=compiles):
                    found.update(_real(line, folders))
    return sorted(found)


def _real(line: str, folders: dict[str, str]) -> Iterator[str]:
    """Yield the path with every link above it resolved, and the files compiled from it."""
    directory, name = os.path.split(line)
    if directory not in folders:
        folders[directory] = os.path.realpath(directory)
    path = f"{folders[directory]}/{name}"
    if not os.path.lexists(path):
        return
    yield path
    if name.endswith(".py"):
        cache = f"{folders[directory]}/__pycache__"
        if cache not in folders:
            folders[cache] = "\0".join(os.listdir(cache)) if os.path.isdir(cache) else ""
        stem = name[:-2]
        for compiled in folders[cache].split("\0"):
            if compiled.startswith(f"{stem}cpython-") and compiled.count(".") == 2:
                yield f"{cache}/{compiled}"


def select(interpreter: str, tools: Iterable[str], names: Iterable[str] = ()) -> list[Package]:
    """Return the packages of an image with `interpreter`, `tools` and the packages `names`.

    HostUnsupported where there is no dpkg, or the interpreter belongs to no package.
    """
    try:
        packages = parse_status(_STATUS.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise HostUnsupported(
            "dpkg",
            f"choose the files of an image: read {_STATUS}: {error.strerror}",
            remedy="build images on Debian or Ubuntu",
            errno=error.errno,
        ) from error
    seeds = owners([interpreter, *tools])
    if not owners([interpreter]):
        raise HostUnsupported(
            "python",
            f"choose the files of an image: {interpreter} belongs to no package",
            remedy="use the distribution's Python: apt-get install python3",
        )
    version = re.match(r"python[\d.]+", os.path.basename(os.path.realpath(interpreter)))
    if version is not None:
        seeds |= {version[0], f"lib{version[0]}-stdlib", "python3-distutils"}
    return closure(packages, (*seeds, *names, *_USEFUL))
