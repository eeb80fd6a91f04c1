"""Docker posture: compare a container's confinement in the host's kernel with the request.

Neither the sandboxed code nor the Docker engine is trusted: the engine may have ignored a field
that it does not know. On a difference the sandbox does not start. Where a kernel of its own runs
the container (gVisor) the host sees only that kernel's process and checks only that it is one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cellwall.jail.inspect import posture
from cellwall.jail.plan import image_plan
from cellwall.jail.plan.plan import INSIDE_UID
from cellwall.linux.cgroups.sandbox_groups import places
from cellwall.runtimes.docker.container import GID, rlimits

if TYPE_CHECKING:
    from cellwall.model.limits import Limits

_LIMIT_LABELS = {
    "core": "Max core file size",
    "fsize": "Max file size",
    "nofile": "Max open files",
    "memlock": "Max locked memory",
    "msgqueue": "Max msgqueue size",
    "nice": "Max nice priority",
    "rtprio": "Max realtime priority",
}
_WRITABLE = frozenset({"/home", "/dev", "/dev/shm", "/dev/pts", "/dev/mqueue", "/proc"})
"""Writable mount points: /dev and /proc by root only. Landlock leaves the guest those that `inside`
lists: the work area, /dev/shm, /dev/pts and /dev/mqueue."""


def read(pid: int) -> dict[str, Any]:
    """Return every fact of one process and its mounts; raises OSError when it has ended."""
    facts = posture.read(pid)
    facts["writable"] = _writable(posture.read_mounts(pid))
    facts["interfaces"] = _interfaces(pid)
    facts["exe"] = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    return facts


def _writable(mounts: list[tuple[str, frozenset[str]]]) -> list[str]:
    """Return mount points that are writable and reachable: no later mount covers their path."""
    found = []
    for at, (point, options) in enumerate(mounts):
        later = [other for other, _ in mounts[at + 1 :]]
        is_covered = any(point == other or point.startswith(other + "/") for other in later)
        if "rw" in options and not is_covered:
            found.append(point)
    return sorted(found)


def _interfaces(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return sorted(line.partition(":")[0].strip() for line in lines)


def verify_place(pid: int, container: str) -> None:
    """Raise `PostureMismatch` unless `pid` is the container's, with mounts of its own."""
    ours, theirs = (os.readlink(f"/proc/{each}/ns/mnt") for each in ("self", pid))
    facts = {"cgroups": places(posture.read_text(f"/proc/{pid}/cgroup"))}
    differences: dict[str, tuple[Any, Any]] = {}
    _check_place(facts, container, differences)
    if ours == theirs:
        differences["mount namespace"] = ("one of its own", "the host's")
    if differences:
        raise posture.PostureMismatch(pid, differences)


def verify_volumes(pid: int, volumes: Mapping[str, bool]) -> None:
    """Raise `PostureMismatch` unless volumes are where they should be, as they should be.

    `volumes`: their mount points, and whether each is read-only.
    """
    posture.compare_points(pid, dict.fromkeys(volumes, posture.VOLUME))
    found = dict(posture.read_mounts(pid))
    differences: dict[str, tuple[Any, Any]] = {}
    for point, is_read_only in volumes.items():
        wanted = {"nosuid", "nodev", "ro" if is_read_only else "rw"}
        if not wanted <= found[point]:
            differences[f"mount {point}"] = (sorted(wanted), sorted(found[point]))
    if differences:
        raise posture.PostureMismatch(pid, differences)


def verify(
    pid: int,
    container: str,
    limits: Limits,
    masked: Collection[str],
    uid: int = INSIDE_UID,
    volumes: Collection[str] = (),
) -> str:
    """Raise `PostureMismatch` unless `pid` is confined as requested; return the posture's digest.

    `masked`: paths that engines cover with /dev/null, which is writable. `uid`: its user inside.
    `volumes`: mount points of volumes that may be written, see `verify_volumes`.
    """
    facts = read(pid)
    hosts = {k: v for k, v in posture.host_namespaces().items() if k != "user"}
    group = _outside(facts["gid_map"], GID)
    want = posture.Expectation(
        uid=_outside(facts["uid_map"], uid),
        gid=group,
        uid_line=facts["uid_map"],
        gid_line=facts["gid_map"],
        groups=(str(group),),  # engines list the user's own group once more
        limits=_limits(limits),
        cgroups=frozenset(),
        host_namespaces=hosts,
    )
    return _compared((pid, container), facts, want, masked, volumes)


def verify_on_image(
    pid: int, container: str, limits: Limits, masked: Collection[str], ids: ImageIds
) -> str:
    """Raise `PostureMismatch` unless `pid` is confined as requested; return the posture's digest.

    It is in a user namespace of its own, with the ids of one range, and has no capability outside.
    """
    facts = read(pid)
    lines = ("0", str(ids.first), str(image_plan.IDS))
    want = posture.Expectation(
        uid=ids.first + ids.uid,
        gid=ids.first + ids.gid,
        uid_line=lines,
        gid_line=lines,
        groups=(),
        limits=_limits(limits),
        cgroups=frozenset(),
        host_namespaces=posture.host_namespaces(),
        capabilities=image_plan.ROOT_CAPABILITIES if ids.uid == 0 else 0,
    )
    return _compared((pid, container), facts, want, masked, {"/", *ids.volumes})


class ImageIds(NamedTuple):
    """Ids of a sandbox on an image, and its volumes."""

    first: int
    """The host's id that is 0 inside."""
    uid: int
    gid: int
    """User and group inside."""
    volumes: tuple[str, ...] = ()
    """Mount points of volumes that may be written."""


def _limits(limits: Limits) -> dict[str, tuple[str, str]]:
    return {_LIMIT_LABELS[n]: (str(v), str(v)) for n, v in rlimits(limits).items()}


def _compared(
    where: tuple[int, str],
    facts: dict[str, Any],
    want: posture.Expectation,
    masked: Collection[str],
    more: Collection[str] = (),
) -> str:
    pid, container = where
    facts["writable"] = [point for point in facts["writable"] if point not in masked]
    posture.compare(pid, facts, want)
    differences: dict[str, tuple[Any, Any]] = {}
    writable = _WRITABLE.union(more)
    if not writable.issuperset(facts["writable"]):
        differences["writable mounts"] = (sorted(writable), facts["writable"])
    if facts["interfaces"] != ["lo"]:
        differences["network interfaces"] = (["lo"], facts["interfaces"])
    _check_place(facts, container, differences)
    if differences:
        raise posture.PostureMismatch(pid, differences)
    return digest(facts)


def verify_own_kernel(pid: int, container: str) -> str:
    """Raise `PostureMismatch` unless `pid` is gVisor's kernel in the container's cgroup."""
    words = posture.read_text(f"/proc/{pid}/cmdline").split("\0")
    facts = {"cgroups": places(posture.read_text(f"/proc/{pid}/cgroup"))}
    differences: dict[str, tuple[Any, Any]] = {}
    if "boot" not in words or "runsc" not in os.path.basename(words[0]):
        differences["program"] = ("runsc-sandbox … boot", " ".join(words)[:200])
    _check_place(facts, container, differences)
    if differences:
        raise posture.PostureMismatch(pid, differences)
    return hashlib.sha256(b"gvisor").hexdigest()


def _check_place(
    facts: Mapping[str, Any], container: str, differences: dict[str, tuple[Any, Any]]
) -> None:
    """Check that every hierarchy places the process in this container's cgroup."""
    held = [place for place in facts["cgroups"] if place.startswith(("memory:", "pids:", ":"))]
    if not held or any(container not in place for place in held if not place.startswith(":")):
        differences["cgroup"] = (container, sorted(facts["cgroups"]))


def _outside(lines: tuple[str, ...], inside: int) -> int:
    """Return the host's number for an id of a container, by its id map (user_namespaces(7))."""
    for at in range(0, len(lines), 3):
        first, outside, count = map(int, lines[at : at + 3])
        if first <= inside < first + count:
            return outside + inside - first
    return -1


def digest(facts: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the facts that are equal for all sandboxes of this confinement."""
    same = {
        name: facts[name]
        for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "writable", "interfaces")
    }
    same["limits"] = {label: facts["limits"].get(label) for label in _LIMIT_LABELS.values()}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
