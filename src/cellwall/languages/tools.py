"""Whether a host has a language's tools, and which version.

The invariant: a tool counts as installed only where a jail would show it, so what is listed as
present can be run inside.
"""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from cellwall.languages.entries.language import Language

SEARCH_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
"""Where programs of a sandbox find tools; directories every jail binds from the host."""

_SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives")
_MAXIMUM_LINKS = 40  # as the kernel, path_resolution(7)


@dataclass(frozen=True, slots=True)
class Installed:
    """A language's tool as found on this host."""

    path: str
    version: str
    """First line of what the tool prints about itself, or empty when it does not run."""


_known: dict[tuple[object, ...], str] = {}
"""Versions by what would change with an upgrade: asking costs a JVM's start or two."""
_asking = threading.Lock()
"""Held while a tool runs: doors that look at the same time ask each tool once, one by one."""


def find_tool(name: str, root: str = "/") -> str | None:
    """Return where a sandbox would find `name`, or None."""
    for directory in SEARCH_PATH:
        path = f"{directory}/{name}"
        if _is_shown(path, root):
            return path
    return None


def is_installed(language: Language, root: str = "/") -> bool:
    """Report whether a jail of the host at `root` would show all its tools."""
    return all(find_tool(name, root) is not None for name in language.tools)


def detect(language: Language) -> Installed | None:
    """Look for the language's tools where a jail would show them, and ask for its version.

    Blocks while the tool runs, which it does once for each version of it.
    """
    path = find_tool(language.tool)
    if path is None or not is_installed(language):
        return None
    found = os.stat(path)
    key = (path, language.version, found.st_ino, found.st_mtime_ns, found.st_size)
    if key not in _known:
        with _asking:
            if key not in _known:
                _known[key] = read_version(language, path)
    return Installed(path, _known[key])


def read_version(language: Language, path: str) -> str:
    """Ask the tool at `path`; it is the host's own, installed by its administrator."""
    try:
        answer = subprocess.run(
            [path, *language.version[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": ":".join(SEARCH_PATH), "LANG": "C.UTF-8"},
            timeout=10,
            check=True,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip().partition("\n")[0]


def _is_shown(path: str, root: str) -> bool:
    """Follow links as the jail would: each hop has to stay in what the jail binds."""
    for _ in range(_MAXIMUM_LINKS):
        real_directory = _inside(os.path.realpath(_on_host(os.path.dirname(path), root)), root)
        path = os.path.join(real_directory, os.path.basename(path))
        if not any(path.startswith(shown + "/") for shown in _SHOWN):
            return False
        try:
            mode = os.lstat(_on_host(path, root)).st_mode
        except OSError:
            return False
        if not stat.S_ISLNK(mode):
            return stat.S_ISREG(mode) and mode & 0o001 != 0
        target = os.readlink(_on_host(path, root))
        path = os.path.normpath(os.path.join(real_directory, target))
    return False


def _on_host(path: str, root: str) -> str:
    return str(Path(root) / path.lstrip("/"))


def _inside(path: str, root: str) -> str:
    """Undo `_on_host`; a directory that leads out of `root` keeps its name and is not shown."""
    real_root = os.path.realpath(root).rstrip("/")
    return path.removeprefix(real_root) if path.startswith(real_root + "/") else path
