"""Reads the host facts that `plan` needs; the host's half.

Not `probe`: this asks what there is to build with, `probe` asks whether it suffices. Reads world
readable things only; what it returns is shown to sandboxes and must say nothing about the host
beyond its kernel's version and its processor.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cellwall.jail.linux import landlock, process
from cellwall.jail.plan import HostFacts

_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_COPIED = ("ld.so.conf", "os-release", "mime.types", "services", "protocols")
_ETC_BOUND = (
    "alternatives",
    "ca-certificates",
    "fonts",
    "ld.so.conf.d",
    "perl",
    "ssl/certs",
    "ssl/openssl.cnf",
)
_TEXT_LIMIT = 262_144


def collect() -> HostFacts:
    """Collect the facts once; a few milliseconds."""
    links, directories = _top_level()
    files, folders = _proc_entries()
    names = os.uname()
    return HostFacts(
        root_links=links,
        root_directories=("usr", *directories),
        etc_copied=_etc_copied(),
        etc_bound=tuple(name for name in (*_ETC_BOUND, *_java()) if Path("/etc", name).exists()),
        proc_files=files,
        proc_directories=folders,
        cpu_blocks=_cpu_blocks(),
        release=names.release,
        version=names.version,
        last_capability=process.last_capability(),
        landlock_abi=landlock.abi(),
    )


def _top_level() -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    links, directories = [], []
    for name in _TOP_LEVEL:
        path = Path("/", name)
        if path.is_symlink():
            links.append((name, os.readlink(path)))
        elif path.is_dir():
            directories.append(name)
    return tuple(links), tuple(directories)


def _etc_copied() -> tuple[tuple[str, str], ...]:
    """Small public text files."""
    copied = []
    for name in _ETC_COPIED:
        path = Path("/etc", name)
        if not path.is_file() or path.stat().st_size > _TEXT_LIMIT:
            continue
        try:
            copied.append((name, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return tuple(copied)


def _java() -> tuple[str, ...]:
    found = [entry.name for entry in Path("/etc").glob("java-*-openjdk")]
    if Path("/etc/ld.so.cache").exists():
        found.append("ld.so.cache")
    return tuple(sorted(found))


def _proc_entries() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Non-process entries of /proc that somebody other than root may open or enter."""
    files, folders = [], []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() or entry.is_symlink():
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                folders.append(entry.name)
            else:
                files.append(entry.name)
    return tuple(sorted(files)), tuple(sorted(folders))


def _cpu_blocks() -> tuple[str, ...]:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    blocks = tuple(block for block in text.split("\n\n") if block.strip())
    count = os.cpu_count() or 1
    return blocks[:count] if len(blocks) >= count else (text,) * count
