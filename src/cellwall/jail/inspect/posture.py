"""Reads a process's confinement back from the host's side and compares it with the plan.

Runs in the engine process. The sandbox is never asked: everything comes from the host's /proc.
`expected` is computed from the plan and the host's own values, `read` is what the kernel says; any
difference means that the sandbox does not start. A fact the kernel cannot report is a difference,
too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from cellwall.jail.plan import image_plan
from cellwall.jail.plan.steps import Lockdown
from cellwall.linux.cgroups.sandbox_groups import places
from cellwall.linux.syscalls import id_maps

Links = tuple[str, ...]
"""A process's namespaces as the kernel names them, in the order of `_NAMESPACES`."""
_MOST_KNOWN = 256
_NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_STATUS = ("Uid", "Gid", "Groups", *_CAPABILITIES, "NoNewPrivs", "Seccomp")
_LIMIT_NAMES = {
    "Max core file size": "RLIMIT_CORE",
    "Max file size": "RLIMIT_FSIZE",
    "Max open files": "RLIMIT_NOFILE",
    "Max locked memory": "RLIMIT_MEMLOCK",
    "Max msgqueue size": "RLIMIT_MSGQUEUE",
    "Max nice priority": "RLIMIT_NICE",
    "Max realtime priority": "RLIMIT_RTPRIO",
    "Max pending signals": "RLIMIT_SIGPENDING",
    "Max processes": "RLIMIT_NPROC",
    "Max data size": "RLIMIT_DATA",
}


WRITABLE = frozenset({"/", "/dev/shm", "/dev/pts"})
"""Mount points that may be writable: the work area, where everything belongs to the user or to root
inside, and terminals."""


VOLUME = "ext4"
"""Type of file system of volumes, and of nothing else in a sandbox."""


class PostureMismatch(Exception):
    """The kernel's report differs from the plan; `differences` says in what."""

    def __init__(self, pid: int, differences: Mapping[str, tuple[Any, Any]]) -> None:
        lines = [
            f"{k}: expected {want!r}, kernel says {got!r}" for k, (want, got) in differences.items()
        ]
        super().__init__(f"posture of process {pid}: " + "; ".join(lines))
        self.differences = dict(differences)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What every process of a sandbox must show; computed before it is cloned."""

    uid: int
    gid: int
    uid_line: tuple[str, ...]
    gid_line: tuple[str, ...]
    """(inside id, id in the parent namespace as the host sees it, count), followed by root's."""
    groups: tuple[str, ...]
    """Supplementary groups on the host: none, or rootless the engine's own, which cannot be left.
    """
    limits: Mapping[str, tuple[str, str]]
    cgroups: frozenset[str]
    host_namespaces: Mapping[str, str]
    server_namespaces: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of the fork-server: all sandboxes of a template would share them."""
    capabilities: int = 0
    """Mask of its permitted, effective and bounding sets; the other two are empty."""
    points: Mapping[str, str] = field(default_factory=dict)
    """Mount points that must exist, each with its type of file system: on an image's root, which
    is not of our making."""
    volumes: Mapping[str, bool] = field(default_factory=dict)
    """Mount points of volumes, and whether each is read-only."""

    @property
    def sets(self) -> tuple[str, ...]:
        """The five capability sets as the kernel prints them, in the order of `_CAPABILITIES`."""
        held, none = f"{self.capabilities:016x}", "0" * 16
        return (none, held, held, held, none)

    def is_foreign(self, name: str, link: str) -> bool:
        """Whether a namespace belongs to the host or the fork-server."""
        return link in (self.host_namespaces.get(name), self.server_namespaces.get(name))


def namespaces_of(pid: int) -> dict[str, str]:
    """Return every namespace of one process, as the kernel names it."""
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in _NAMESPACES}


def host_namespaces() -> dict[str, str]:
    """Return the embedding process's own namespaces; a sandbox must share none of them."""
    return namespaces_of(os.getpid())


class HostIds(NamedTuple):
    """User ids and group ids on the host of one sandbox."""

    first: tuple[int, int]
    """Those of the user, or the first ones of a sandbox on an image."""
    root: tuple[int, int] | None = None
    """Those that are called root inside, if any are; no process may have them."""
    of_image: id_maps.Lines = id_maps.WHOLE
    """Which ids of a sandbox on an image, from the first on, are which of the image's."""


def expected(
    lockdown: Lockdown,
    ids: HostIds,
    cgroups: Set[str],
    namespaces: Mapping[str, str],
    server_namespaces: Mapping[str, str] | None = None,
) -> Expectation:
    """Compute the expectation from the plan's lockdown and the ids on the host."""
    host_uid, host_gid = ids.first
    if lockdown.builds_as_root:
        uid_line: Links = tuple(id_maps.text(ids.of_image, host_uid).split())
        gid_line: Links = tuple(id_maps.text(ids.of_image, host_gid).split())
        host_uid += id_maps.distance(ids.of_image, lockdown.uid)
        host_gid += id_maps.distance(ids.of_image, lockdown.gid)
    else:
        uid_line = (str(lockdown.uid), str(host_uid), "1", *_root_line(ids.root, 0))
        gid_line = (str(lockdown.gid), str(host_gid), "1", *_root_line(ids.root, 1))
    return Expectation(
        uid=host_uid,
        gid=host_gid,
        uid_line=uid_line,
        gid_line=gid_line,
        groups=() if lockdown.clear_groups else tuple(sorted(map(str, os.getgroups()))),
        limits=_limit_lines(lockdown.rlimits),
        cgroups=frozenset(cgroups),
        host_namespaces=namespaces,
        server_namespaces=server_namespaces or {},
        capabilities=lockdown.capabilities,
        points=image_plan.POINTS if lockdown.builds_as_root else {},
    )


@lru_cache(maxsize=64)
def _limit_lines(rlimits: tuple[tuple[int, int, int], ...]) -> Mapping[str, tuple[str, str]]:
    """Return the soft and hard limit by its name in /proc/<pid>/limits; the same for one plan."""
    numbers = {getattr(resource, name): label for label, name in _LIMIT_NAMES.items()}
    return {numbers[n]: (str(soft), str(hard)) for n, soft, hard in rlimits}


def _root_line(root_ids: tuple[int, int] | None, which: int) -> Links:
    return () if root_ids is None else ("0", str(root_ids[which]), "1")


def read_text(path: str) -> str:
    """Read a short file of /proc in one go; a file object would take five system calls more."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65_536).decode("utf-8", "replace")
    finally:
        os.close(fd)


def _read_whole(path: str) -> str:
    parts = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, 65_536):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "replace")


def read_status(text: str) -> dict[str, str]:
    """Parse /proc/<pid>/status (proc_pid_status(5))."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def read(pid: int) -> dict[str, Any]:
    """Read every fact of one process; raises OSError when the process is gone."""
    base = f"/proc/{pid}"
    status = read_status(read_text(base + "/status"))
    facts: dict[str, Any] = {name: status.get(name, "not reported") for name in _STATUS}
    facts["namespaces"] = namespaces_of(pid)
    facts["uid_map"] = tuple(read_text(base + "/uid_map").split())
    facts["gid_map"] = tuple(read_text(base + "/gid_map").split())
    facts["limits"] = _read_limits(read_text(base + "/limits"))
    facts["cgroups"] = places(read_text(base + "/cgroup"))
    return facts


def read_stat(pid: int) -> list[str]:
    """Fields of proc_pid_stat(5) behind the name, `state` first; none when the process is gone."""
    try:
        return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return []


def last_cpu(pid: int) -> int:
    """Return the CPU a process ran on last (`processor`); -1 when it is gone."""
    fields = read_stat(pid)
    return int(fields[36]) if len(fields) > 36 else -1


def read_mounts(pid: int) -> list[tuple[str, frozenset[str]]]:
    """(mount point, options) of a process's mount namespace, in order (proc_pid_mountinfo(5))."""
    found = _MOUNT.findall(_read_whole(f"/proc/{pid}/mountinfo"))
    return [(point, frozenset(options.split(","))) for point, options in found]


def compare_mounts(
    pid: int,
    found: list[tuple[str, frozenset[str]]],
    volumes: Mapping[str, bool] = MappingProxyType({}),
) -> None:
    """Raise unless set-uid is off everywhere and only the work area and volumes can be written.

    Looks at the topmost mount of each point: what lies below a mount cannot be reached, because no
    process inside can unmount.
    """
    differences: dict[str, tuple[Any, Any]] = {}
    top = dict(found)
    for point, options in top.items():
        if "nosuid" not in options:
            differences[f"mount {point}"] = ("nosuid", sorted(options))
        if "nodev" not in options and not point.startswith("/dev/"):
            differences[f"mount {point}"] = ("nodev", sorted(options))
        if "rw" in options and volumes.get(point, point not in WRITABLE):
            differences[f"mount {point}"] = ("ro", sorted(options))
    missing = (WRITABLE | volumes.keys()) - set(top)
    if missing:
        differences["mounts"] = (f"{sorted(missing)} mounted", "absent")
    if differences:
        raise PostureMismatch(pid, differences)


def compare_points(pid: int, wanted: Mapping[str, str]) -> None:
    """Raise unless each mount point of `wanted` has a mount of that type on top.

    A path of an image could have led a mount elsewhere; this is where the kernel says it is.
    """
    found = dict(_TYPE.findall(_read_whole(f"/proc/{pid}/mountinfo")))
    differences = {
        f"mount {point}": (kind, found.get(point, "absent"))
        for point, kind in wanted.items()
        if found.get(point) != kind
    }
    if differences:
        raise PostureMismatch(pid, differences)


def _read_limits(text: str) -> dict[str, tuple[str, str]]:
    """Parse /proc/<pid>/limits: a 26-column name, then soft and hard."""
    limits = {}
    for line in text.splitlines()[1:]:
        words = line[26:].split()
        limits[line[:26].strip()] = (words[0], words[1])
    return limits


def compare(pid: int, facts: Mapping[str, Any], want: Expectation) -> None:
    """Raise `PostureMismatch` unless every fact is exactly as expected."""
    differences: dict[str, tuple[Any, Any]] = {}

    def check(name: str, expected_value: object, found: object) -> None:
        if expected_value != found:
            differences[name] = (expected_value, found)

    check("Uid", [str(want.uid)] * 4, facts["Uid"].split())
    check("Gid", [str(want.gid)] * 4, facts["Gid"].split())
    check("Groups", list(want.groups), sorted(facts["Groups"].split()))
    for name, held in zip(_CAPABILITIES, want.sets, strict=True):
        check(name, held, facts[name])
    check("NoNewPrivs", "1", facts["NoNewPrivs"])
    check("Seccomp", "2", facts["Seccomp"])
    check("uid_map", want.uid_line, facts["uid_map"])
    check("gid_map", want.gid_line, facts["gid_map"])
    for name, link in facts["namespaces"].items():
        if want.is_foreign(name, link):
            differences[f"{name} namespace"] = ("its own", link)
    for name, values in want.limits.items():
        check(name, values, facts["limits"].get(name))
    for tail in want.cgroups:
        if tail not in facts["cgroups"]:
            differences["cgroup"] = (tail, sorted(facts["cgroups"]))
    if differences:
        raise PostureMismatch(pid, differences)


class Verifier:
    """Reads and compares processes one after the other; texts that passed before are recognised.

    The same confinement gives the same `limits` and mount table to the letter, so a text that
    passed the full comparison passes again by equality. A text that is not literally the expected
    one goes through `read` and `compare`, which say what is wrong. Nothing is skipped.
    """

    def __init__(self) -> None:
        self._limits: set[tuple[tuple[tuple[str, tuple[str, str]], ...], str]] = set()
        self._mounts: set[tuple[object, ...]] = set()

    def verify(self, pid: int, want: Expectation) -> Links:
        """Raise `PostureMismatch` unless process `pid` is confined exactly as expected.

        Returns its namespaces, for `verify_beside`.
        """
        base = f"/proc/{pid}"
        links = _links(base)
        if not (
            self._is_known(base, want)
            and tuple(read_text(base + "/uid_map").split()) == want.uid_line
            and tuple(read_text(base + "/gid_map").split()) == want.gid_line
            and not any(map(want.is_foreign, _NAMESPACES, links))
        ):
            self._verify_slowly(pid, want)
        return links

    def verify_beside(self, pid: int, want: Expectation, links: Links) -> None:
        """Verify another process of a sandbox: it must also be in the same namespaces.

        The id maps belong to the user namespace, so they were compared with the first process.
        """
        base = f"/proc/{pid}"
        if not (self._is_known(base, want) and _links(base) == links):
            self._verify_slowly(pid, want)
            if _links(base) != links:
                raise PostureMismatch(pid, {"namespaces": (links, _links(base))})

    def _is_known(self, base: str, want: Expectation) -> bool:
        key = (tuple(want.limits.items()), read_text(base + "/limits"))
        return (
            key in self._limits
            and _has_status(read_text(base + "/status"), want)
            and want.cgroups <= places(read_text(base + "/cgroup"))
        )

    def _verify_slowly(self, pid: int, want: Expectation) -> None:
        limits = read_text(f"/proc/{pid}/limits")
        compare(pid, read(pid), want)
        _keep(self._limits, (tuple(want.limits.items()), limits))

    def verify_mounts(self, pid: int, want: Expectation) -> None:
        """Verify the mount namespace, which all processes of a sandbox share."""
        text = _read_whole(f"/proc/{pid}/mounts")
        # The one thing that differs: the user as which a tmpfs was mounted.
        text = _OWNER.sub("", text) if want.points else text.replace(_owner(want), "")
        known = (text, *want.volumes.items())
        if known not in self._mounts:
            compare_mounts(pid, read_mounts(pid), want.volumes)
            compare_points(pid, {**want.points, **dict.fromkeys(want.volumes, VOLUME)})
            _keep(self._mounts, known)


def _owner(want: Expectation) -> str:
    return f"uid={want.uid},gid={want.gid}"


def _keep(known: set[Any], item: object) -> None:
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known.add(item)


def _links(base: str) -> Links:
    return tuple(os.readlink(f"{base}/ns/{name}") for name in _NAMESPACES)


def _has_status(text: str, want: Expectation) -> bool:
    """Whether the expected lines are in a status file, letter by letter (proc_pid_status(5))."""
    uid, gid = want.uid, want.gid
    return (
        _confined(want.sets) in text
        and f"\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n" in text
        and f"\nGid:\t{gid}\t{gid}\t{gid}\t{gid}\n" in text
        and f"\nGroups:\t{' '.join(want.groups)} \n" in text
    )


@lru_cache(maxsize=8)
def _confined(sets: tuple[str, ...]) -> str:
    lines = [f"{name}:\t{held}\n" for name, held in zip(_CAPABILITIES, sets, strict=True)]
    return "".join(lines) + "NoNewPrivs:\t1\nSeccomp:\t2\n"


_OWNER = re.compile(r"uid=\d+,gid=\d+")
_TYPE = re.compile(r"^\d+ \d+ \S+ \S+ (\S+) .*? - (\S+) ", re.MULTILINE)
_MOUNT = re.compile(r"^\d+ \d+ \S+ \S+ (\S+) (\S+)", re.MULTILINE)


def children(pid: int, thread: int = 0) -> list[int]:
    """Processes that a process's first thread, or thread `thread`, has made: `children` of proc(5).

    SECURITY: the file is read to its end. One read returns a page at most, and the rest would be
    missed.
    """
    text = _read_whole(f"/proc/{pid}/task/{thread or pid}/children")
    return [int(word) for word in text.split()]


def descendants(pid: int) -> list[int]:
    """Return every process below `pid`, parents first; a context may have children."""
    found = children(pid)
    for each in found:
        found += children(each)
    return found


def threads(pid: int) -> list[int]:
    """Return the thread ids of a process."""
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def digest(lockdown: Lockdown, plan_digest: str) -> str:
    """SHA-256 over a verified posture: what is the same for every sandbox of this confinement."""
    facts = {
        "capabilities": lockdown.capabilities,
        "no_new_privs": 1,
        "seccomp": 2,
        "namespaces": _NAMESPACES,
    }
    text = json.dumps([facts, lockdown._asdict(), plan_digest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
