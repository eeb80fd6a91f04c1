"""Environment tree: the engine's own files in an environment, which decide what Python loads.

Called by `build` only; it does not cover what packages install. The invariant: after an install,
`pyvenv.cfg` and the links in `bin` are unchanged, and there is no other link. A wheel that brought
its own would choose the interpreter's standard library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from cellwall.engine.templates.base_interpreter import BaseInterpreter
from cellwall.model.errors import HostUnsupported

_INTERPRETERS = re.compile(r"python[\d.]*", re.IGNORECASE)
_CONFIGURATION = "pyvenv.cfg"
_DISTRIBUTION = re.compile(r"(.+)-([^-]+)\.dist-info")
_SEPARATORS = re.compile(r"[-_.]+")
_RELOCATABLE = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python' "$0" "$@"
' '''"""
"""First lines with which uv begins the scripts of a relocatable environment."""


def own(root: Path) -> dict[str, bytes]:
    """Return the deciding files by path: targets of links, content of the configuration."""
    found = {}
    for path in _deciding(root):
        is_link = path.is_symlink()
        found[str(path.relative_to(root))] = (
            b"link to " + os.fsencode(os.readlink(path)) if is_link else path.read_bytes()
        )
    return found


def _deciding(root: Path) -> Iterator[Path]:
    """Yield every link, and the interpreter names and configuration where Python looks."""
    for folder, folders, names in os.walk(root):
        is_bin = folder == str(root / "bin")
        is_looked_at = is_bin or folder == str(root)
        for name in (*folders, *names):
            path = Path(folder, name)
            decides = is_looked_at and name.lower() == _CONFIGURATION
            decides |= is_bin and _INTERPRETERS.fullmatch(name) is not None
            if decides or path.is_symlink():
                yield path


def require_own(root: Path, before: dict[str, bytes], template: str) -> None:
    """Raise `HostUnsupported` if a package has changed or added a deciding file."""
    try:
        after = own(root)
    except OSError as error:  # a folder, or a device, in the place of a file
        after = {os.path.relpath(str(error.filename), root): b""}
    wrong = sorted(
        name for name in {*before, *after} if before.get(name, b"") != after.get(name, b"")
    )
    if wrong:
        culprits = ", ".join(_bringing(root, wrong)) or "one of its packages"
        raise HostUnsupported(
            "template build",
            f"build template {template}: {culprits} brings its own {', '.join(wrong)}",
            remedy="take the package off the template; report it, no honest package does that",
        )


def _bringing(root: Path, names: list[str]) -> list[str]:
    """Return the packages that claim to have installed one of `names`; for the message only."""
    found = []
    for record in _packages(root).glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        paths = {os.path.normpath(line.partition(",")[0]) for line in lines}
        if any(os.path.relpath(root / name, record.parents[1]) in paths for name in names):
            found.append(_pin(record.parent.name) or record.parent.name)
    return sorted(found)


def make_relocatable(root: Path, base: BaseInterpreter) -> None:
    """Make the scripts in `bin` start the interpreter beside them instead of the base interpreter.

    They were installed for a prefix, so their first line names the base interpreter, which does not
    know the template's packages.
    """
    named = os.fsencode(base.executable)
    short = b"#!" + named
    long = b"#!/bin/sh\n'''exec' " + named + b' "$0" "$@"\n' + b"' '''"
    for path in sorted((root / "bin").iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        for beginning in (short, long):
            rest = content[len(beginning) :]
            if content.startswith(beginning) and rest[:1] in (b"", b" ", b"\n", b"\r"):
                path.write_bytes(_RELOCATABLE + rest)


def packages_folder(root: Path, base: BaseInterpreter) -> Path:
    """Return the directory where modules are installed."""
    return root / f"lib/python{base.version[0]}.{base.version[1]}/site-packages"


def _packages(root: Path) -> Path:
    return next((root / "lib").glob("python*/site-packages"), root)


def pins(packages: Path) -> list[str]:
    """Return the installed packages as `name==version`, sorted; read from folder names only."""
    found = (_pin(path.name) for path in packages.glob("*.dist-info"))
    return sorted(pin for pin in found if pin)


def _pin(folder: str) -> str | None:
    matched = _DISTRIBUTION.fullmatch(folder)
    return matched and f"{_SEPARATORS.sub('-', matched[1]).lower()}=={matched[2]}"
