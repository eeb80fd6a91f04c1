"""Reads the host facts that `plan` needs, in the engine process.

It is not `probe`: this reads what a jail can be built from, `probe` tries whether that suffices. It
reads world-readable things only; its results are shown to sandboxes and must say nothing about the
host beyond its kernel's version and its processor.
"""

from __future__ import annotations

import os
import resource
import stat
import time
from functools import lru_cache
from pathlib import Path

from cellwall.jail.fast import single_program
from cellwall.jail.inspect import overlay_depth
from cellwall.jail.plan.plan import HostFacts
from cellwall.linux.syscalls import landlock, process
from cellwall.model.errors import HostUnsupported

_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_COPIED = ("ld.so.conf", "os-release", "mime.types", "services", "protocols")
_ETC_BOUND = (
    "R",
    "alternatives",
    "ca-certificates",
    "fonts",
    "fpc.cfg",
    "ld.so.conf.d",
    "mono/2.0",
    "mono/4.0",
    "mono/4.5",
    "mono/config",
    "perl",
    "ssl/certs",
    "ssl/openssl.cnf",
)
_VAR_BOUND = ("ghc",)
_TEXT_LIMIT = 262_144
_CORE_PATTERN = "/proc/sys/kernel/core_pattern"
_CAP_SYS_PTRACE = 19
_FIRST_USER_NAMESPACE = 0xEFFFFFFD
"""Inode number of the first user namespace's file: PROC_USER_INIT_INO, include/linux/proc_ns.h."""
CORE_REMEDY = (
    "start it with a hard limit of 1 or more: `ulimit -Hc unlimited` before (as root), "
    "LimitCORE=infinity in a systemd unit, --ulimit core=-1 for a container"
)


def collect() -> HostFacts:
    """Collect the facts once; a few milliseconds."""
    links, directories = _top_level()
    files, closed, folders = _proc_entries()
    names = os.uname()
    return HostFacts(
        root_links=links,
        root_directories=("usr", *directories),
        etc_copied=_etc_copied(),
        etc_bound=tuple(name for name in (*_ETC_BOUND, *_java()) if Path("/etc", name).exists()),
        var_bound=tuple(name for name in _VAR_BOUND if Path("/var/lib", name).exists()),
        proc_files=files,
        proc_closed=closed,
        proc_directories=folders,
        cpu_blocks=_cpu_blocks(),
        release=names.release,
        version=names.version,
        last_capability=process.last_capability(),
        landlock_abi=landlock.abi(),
        core_limit=core_limit(),
        boot_time=int(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)),
    )


def for_jails(state_dir: Path) -> HostFacts:
    """Collect the facts, and how shared trees can be shown; `state_dir` is where templates lie."""
    found = collect()
    trees = [f"/{name}" for name in found.root_directories]
    own = [str(state_dir)] if state_dir.is_dir() else []
    depth = overlay_depth.ask([*trees, *own]).depth
    return found._replace(
        layers=depth,
        nested=overlay_depth.mounted_below(trees) if depth else (),
        channels=() if depth else overlay_depth.channels(trees),
    )


def core_limit() -> int:
    """RLIMIT_CORE for sandboxes; 1 where this process may have it. setrlimit(2), core(5).

    With a hard limit of 0 it can only be 0. That is as good where the kernel writes core files. But
    a handler behind a pipe is started at 0 as at any value but 1, so that is a HostUnsupported.
    """
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
        return 1
    pattern = _core_pattern()
    if pattern is None or pattern.startswith("|"):
        raise HostUnsupported(
            "core limit",
            f"set RLIMIT_CORE of a sandbox to 1: ours is 0 and cannot be raised, and "
            f"kernel.core_pattern is {'hidden from us' if pattern is None else repr(pattern)}, "
            "which may hand crashes to a handler of the host's",
            remedy=CORE_REMEDY,
        )
    return 0


def _core_pattern() -> str | None:
    try:
        return Path(_CORE_PATTERN).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # masked
        return None


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
    """Read small public text files."""
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


@lru_cache(maxsize=1)
def runs_alone() -> bool:
    """Whether `fast.single_program` works here, tried once; see `single_program.is_possible`."""
    return single_program.is_possible()


@lru_cache(maxsize=1)
def sees_exit_codes() -> bool:
    """Whether /proc/<pid>/stat shows the exit code of every process, whatever it did before.

    Newer kernels (seen on 6.18.44) remember that a process without memory was not dumpable, and
    show its code only to a holder of CAP_SYS_PTRACE in the first user namespace. Other readers get
    0.
    """
    if os.stat("/proc/self/ns/user").st_ino != _FIRST_USER_NAMESPACE:
        return False
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_PTRACE & 1)


def _java() -> tuple[str, ...]:
    found = [entry.name for entry in Path("/etc").glob("java-*-openjdk")]
    if Path("/etc/ld.so.cache").exists():
        found.append("ld.so.cache")
    return tuple(sorted(found))


def _proc_entries() -> tuple[tuple[str, ...], ...]:
    """Return non-process entries of /proc: files for others, files for root only, directories."""
    files, closed, folders = [], [], []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() or entry.is_symlink():
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                folders.append(entry.name)
            elif mode & (stat.S_IRWXG | stat.S_IRWXO):
                files.append(entry.name)
            else:
                closed.append(entry.name)
    return tuple(sorted(files)), tuple(sorted(closed)), tuple(sorted(folders))


def _cpu_blocks() -> tuple[str, ...]:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    blocks = tuple(block for block in text.split("\n\n") if block.strip())
    count = os.cpu_count() or 1
    return blocks[:count] if len(blocks) >= count else (text,) * count
