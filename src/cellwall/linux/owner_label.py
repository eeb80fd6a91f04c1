"""Owner labels: every object that an engine makes on the host is labelled with that engine.

A label names a process beyond doubt: boot, pid namespace, pid and start time. Only `is_dead` and
`is_dead_in_this_boot` decide that an object is a leftover; an object that they cannot judge must
not be touched.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_LABEL = re.compile(r"^([0-9a-f]{8})-(\d+)-(\d+)-(\d+)-([0-9a-f]{8})$")


def _boot() -> str:
    text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return text.replace("-", "")[:8]


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (proc_pid_stat(5)), None if gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def new_label(pid: int = 0) -> str:
    """Return a label for an engine of this process, or of another one that it lives with."""
    pid = pid or os.getpid()
    return f"{_boot()}-{_pid_namespace()}-{pid}-{start_time(pid)}-{os.urandom(4).hex()}"


def is_dead(label: str) -> bool:
    """Report whether the labelled engine is certainly gone, for objects that survive a reboot."""
    match = _LABEL.match(label)
    return match is not None and (match[1] != _boot() or _is_gone(match))


def is_dead_in_this_boot(label: str) -> bool:
    """Report the same for objects that no reboot leaves, such as control groups.

    SECURITY: the owner's boot is this one, whatever the label says. A container may be given a boot
    id of its own (systemd-nspawn does), and a process in it is not dead for that reason.
    """
    match = _LABEL.match(label)
    return match is not None and _is_gone(match)


def _is_gone(match: re.Match[str]) -> bool:
    _, namespace, pid, started, _ = match.groups()
    return int(namespace) == _pid_namespace() and start_time(int(pid)) != int(started)
