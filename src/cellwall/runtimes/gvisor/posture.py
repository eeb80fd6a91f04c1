"""Posture: what the host's kernel reports about a gVisor sandbox's processes, compared.

The sandbox's own kernel is one of those processes: its service to the program cannot be observed
from the host, its own confinement can. The invariant: every process in the sandbox's cgroups is in
the pid namespace below the keeper; any other process is a refusal.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellwall.linux.cgroups.sandbox_groups import places
from cellwall.model.errors import SandboxBroken

if TYPE_CHECKING:
    from cellwall.linux.cgroups.sandbox_groups import Groups

_OWN_NAMESPACES = ("pid", "net", "mnt", "ipc", "uts", "user")
_FILTERED = "2"
_KERNEL = "runsc-sandbox"
_FILE_SERVER = "runsc-gofer"


def verify(groups: Groups, keeper: int) -> dict[str, Any]:
    """Return the facts of the sandbox's kernel and file server; SandboxBroken on a difference.

    Blocks for a millisecond.
    """
    found: dict[str, Any] = {}
    for pid in groups.members():
        name = _program(pid)
        _check(_namespace(pid, "pid") != _namespace("self", "pid"), pid, "it is in our namespace")
        _check(
            places(_read(pid, "cgroup")) >= groups.expected_lines(), pid, "it is in other cgroups"
        )
        if name in {_KERNEL, _FILE_SERVER}:
            found[name] = facts(pid)
    for name in (_KERNEL, _FILE_SERVER):
        _check(name in found, keeper, f"no {name} is in its cgroups")
        status = found[name]
        _check(status["seccomp"] == _FILTERED, keeper, f"{name} has no system call filter")
        _check(status["no_new_privs"] == "1", keeper, f"{name} may gain privileges")
    own = found[_KERNEL]["namespaces"]
    for name in _OWN_NAMESPACES:
        _check(own[name] != _namespace("self", name), keeper, f"{_KERNEL} is in our {name}")
    return found


def facts(pid: int) -> dict[str, Any]:
    """Read one process's confinement from /proc."""
    lines = (line.partition(":") for line in _read(pid, "status").splitlines())
    status = {name: value.strip() for name, _, value in lines}
    return {
        "uid": status.get("Uid", ""),
        "capabilities": status.get("CapEff", ""),
        "no_new_privs": status.get("NoNewPrivs", ""),
        "seccomp": status.get("Seccomp", ""),
        "namespaces": {name: _namespace(pid, name) for name in _OWN_NAMESPACES},
    }


def _check(holds: bool, pid: int, what: str) -> None:
    if not holds:
        raise SandboxBroken(
            f"gVisor: compare the sandbox's processes: {pid}: {what}",
            remedy="run `cellwall doctor`; is this a runsc that was changed?",
        )


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _namespace(pid: int | str, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{name}")
    except OSError:
        return ""


def _program(pid: int) -> str:
    return _read(pid, "cmdline").partition("\0")[0].rpartition("/")[2]
