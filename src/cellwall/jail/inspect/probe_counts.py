"""Judges the host's limits: the number of processes, descriptors, watches and namespaces.

Runs in the engine process, called by `probe`. It is not about the limits of one sandbox
(`model.limits`). Reading and judging are apart, so that tests can judge hosts that they do not run
on.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Literal, NamedTuple

from cellwall.model.errors import HostUnsupported

Grade = Literal["PASS", "CAUTION", "FAIL"]
UNLIMITED = 1 << 62
_PER_SANDBOX = 100
"""Default number of processes of a sandbox."""
LEAST_OPEN_FILES = 256
"""Number of open files a sandbox may have by default; about as many as a fork-server with its
workers needs."""
_MORE_FILES = "ulimit -n 65536, LimitNOFILE=65536, or --ulimit nofile=65536"


class Found(NamedTuple):
    """One feature: its state, and the command that repairs it."""

    feature: str
    grade: Grade
    detail: str
    remedy: str = ""


class Counts(NamedTuple):
    """The limits of this process; `UNLIMITED` where there is none, None where it cannot be read."""

    open_files: int
    """The hard RLIMIT_NOFILE."""
    processes: int
    """The least of RLIMIT_NPROC, kernel.pid_max, kernel.threads-max and this cgroup's pids.max."""
    inotify_instances: int | None
    """The setting fs.inotify.max_user_instances."""
    user_namespaces: int | None
    """The setting user.max_user_namespaces."""

    @classmethod
    def of_this_process(cls) -> Counts:
        """Read the limits from the kernel."""
        bounds = [_setting("kernel/pid_max"), _setting("kernel/threads-max"), _own_pids_max()]
        bounds.append(_hard(resource.RLIMIT_NPROC))
        return cls(
            open_files=_hard(resource.RLIMIT_NOFILE),
            processes=min(bound for bound in bounds if bound is not None),
            inotify_instances=_setting("fs/inotify/max_user_instances"),
            user_namespaces=_setting("user/max_user_namespaces"),
        )


def check_open_files(wanted: int) -> None:
    """Raise `HostUnsupported` unless a sandbox can have `wanted` open files.

    No process in a user namespace can exceed the hard RLIMIT_NOFILE of the embedding process.
    """
    hard = _hard(resource.RLIMIT_NOFILE)
    if hard < LEAST_OPEN_FILES:
        raise HostUnsupported(
            "open files",
            f"open files: {hard}: a sandbox takes {LEAST_OPEN_FILES}",
            remedy=f"raise the hard limit where this process is started: {_MORE_FILES}",
        )
    if hard < wanted:
        raise HostUnsupported(
            "open files",
            f"start a sandbox with {wanted} open files: the hard limit on them here "
            f"(RLIMIT_NOFILE) is {hard}",
            remedy=f"ask for fewer, or raise it where this process is started: {_MORE_FILES}",
        )


def judge(counts: Counts) -> list[Found]:
    """Return a grade for each count; a small one means fewer sandboxes, and FAIL only none."""
    found = _few(
        "open files",
        counts.open_files,
        16_384,
        "a live sandbox holds some of the engine's",
        _MORE_FILES,
        least=LEAST_OPEN_FILES,
    )
    found += _few(
        "processes",
        counts.processes,
        8192,
        f"enough for {counts.processes // _PER_SANDBOX} sandboxes that use all of theirs",
        "the least of `ulimit -u`, kernel.pid_max, kernel.threads-max and the cgroup's pids.max "
        "(TasksMax, --pids-limit) counts",
    )
    found += _few(
        "fs.inotify.max_user_instances",
        counts.inotify_instances,
        1024,
        "sandboxes of one user share them, a greedy one takes 32",
        "sysctl -w fs.inotify.max_user_instances=8192",
    )
    found += _few(
        "user.max_user_namespaces",
        counts.user_namespaces,
        4096,
        "each sandbox takes one, each fork-server two",
        "sysctl -w user.max_user_namespaces=65536",
    )
    return found


def _few(
    feature: str, count: int | None, enough: int, why: str, remedy: str, *, least: int = 0
) -> list[Found]:
    if count is None:
        return []
    shown = "not limited" if count >= UNLIMITED else str(count)
    if count >= enough:
        return [Found(feature, "PASS", shown)]
    if count < least:
        return [Found(feature, "FAIL", f"{shown}: a sandbox takes {least}", remedy)]
    return [Found(feature, "CAUTION", f"{shown}: {why}", remedy)]


def _hard(number: int) -> int:
    hard = resource.getrlimit(number)[1]
    return UNLIMITED if hard == resource.RLIM_INFINITY else hard


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:  # hidden where /proc is masked
        return None
    return UNLIMITED if text == "max" else int(text)


def _setting(name: str) -> int | None:
    return _number(Path("/proc/sys", name))


def _own_pids_max() -> int | None:
    """Return the limit of this cgroup, where it is shown: a container sees its own at the top."""
    groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    for line in groups.splitlines():
        _, names, own = line.split(":", 2)
        if names in {"", "pids"}:
            top = Path("/sys/fs/cgroup", names)
            paths = (top / own.strip("/") / "pids.max", top / "pids.max")
            found = next((n for n in map(_number, paths) if n is not None), None)
            if found is not None:
                return found
    return None
