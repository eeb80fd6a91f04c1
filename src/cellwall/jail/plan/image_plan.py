"""Stage C of a sandbox whose root is an image: its mounts, and what its user may do.

Pure, like `plan`, which decides for sandboxes on a template. The image's tree comes as a detached
mount from `idmapper`; the sandbox mounts an overlay of its own over it, so what it changes lies in
its work area, and counts there. All 65,536 ids of the image exist inside, as ids of the host that
only this sandbox has; an ordinary user's has fewer, and shares them (`subordinate_ids.ImageIds`).

The tree was made by `jail.unpack`, which also made the directories that are mounted over; posture
compares where the mounts really are.
"""

from __future__ import annotations

from typing import List, Mapping, Tuple

from cellwall.jail.plan import plan
from cellwall.jail.plan import steps as s
from cellwall.linux.syscalls import id_maps
from cellwall.linux.syscalls import mounts as m

IMAGE_FD = plan.FIRST_MOUNT_FD
"""Descriptor of the image's mount in a new sandbox: a worker receives it behind the channel."""
IDS = id_maps.IDS
ROOT_CAPABILITIES = sum(
    1 << number
    for number in (
        *(0, 1, 3, 4),  # CHOWN, DAC_OVERRIDE, FOWNER, FSETID
        *(5, 6, 7, 8),  # KILL, SETGID, SETUID, SETPCAP
        *(10, 18, 29),  # NET_BIND_SERVICE, SYS_CHROOT, AUDIT_WRITE
    )
)
"""What root inside an image may do in the sandbox's own user namespace: the default of containers
(capabilities(7)) without those that have no use here (MKNOD, NET_RAW, SETFCAP)."""
MADE = (
    *("/dev", "/etc", "/opt", plan.OWN, "/proc", "/run", "/sys", "/tmp", "/var"),  # noqa: S108 - in the image
    *("/dev/pts", "/dev/shm", "/var/tmp"),  # noqa: S108 - in the image
)
"""Directories that every image's root is given, and that are no links in it (`jail.unpack`)."""
POINTS = {
    "/": "overlay",
    plan.OWN: "tmpfs",
    "/dev/pts": "devpts",
    "/dev/shm": "tmpfs",  # noqa: S108 - in the sandbox
    "/proc": "proc",
    "/sys": "tmpfs",
}
"""Mount points of such a sandbox, with the type of file system that must be there."""
_AREA = "/tmp"  # noqa: S108 - of the root under construction
_LOWER, _UPPER, _WORK = f"{_AREA}/image", f"{_AREA}/upper", f"{_AREA}/work"
_ROOT = plan.ROOT
_OWN_INODES = 10
"""Number of inodes in the work area that are not the user's: the directories below, and one that
the overlay makes for its work."""
_READ_ONLY = m.ATTR_RDONLY | m.ATTR_NOSUID | m.ATTR_NODEV


def sandbox_plan(facts: plan.HostFacts, shape: plan.Shape) -> s.SandboxPlan:
    """Return the steps and the lockdown of a sandbox whose `shape` names an image's user."""
    seen = plan.kernel_views(facts, shape)
    steps = (*_own_root(facts, shape), s.Pivot(_ROOT), *seen, *_volumes(shape))
    return s.SandboxPlan(steps, _lockdown(facts, shape))


def _interpreter(facts: plan.HostFacts) -> s.Step:
    """Show the interpreter that is not the image's, below a tmpfs of ours, where no link leads."""
    target = _ROOT + plan.OWN_PYTHON
    if not facts.layers:
        return s.Cover(plan.INTERPRETER, target)
    return s.Mount("overlay", target, _READ_ONLY, m.layers(plan.INTERPRETER, plan.NONE))


def points(shape: plan.Shape) -> Mapping[str, str]:
    """Return the mount points of a sandbox on an image, with the type of file system of each."""
    return {**POINTS, plan.CHANGES: "tmpfs"} if shape.shows_changes else POINTS


def _changes() -> Tuple[s.Step, ...]:
    """Show the upper directory of the overlay, read-only: of it a layer is made."""
    target = _ROOT + plan.CHANGES
    return (s.Cover(_UPPER, target), s.Remount(target, _READ_ONLY | m.ATTR_NOEXEC))


def _own_root(facts: plan.HostFacts, shape: plan.Shape) -> List[s.Step]:
    flags = m.MS_NOSUID | m.MS_NODEV
    inodes = shape.inodes + _OWN_INODES + sum(path.count("/") for path, _ in shape.volumes)
    return [
        s.Mount("tmpfs", _AREA, flags, f"size={shape.disk_mb}m,nr_inodes={inodes},mode=755"),
        s.Directory(_LOWER),
        # First of all: it frees the descriptor that the next steps use.
        s.Attach(_LOWER, IMAGE_FD),
        *(s.Directory(path) for path in (_UPPER, _WORK, _ROOT)),
        s.Directory(f"{_AREA}/shm", 0o1777),
        s.Mount("overlay", _ROOT, flags, m.changeable(_LOWER, _UPPER, _WORK)),
        s.Cover(plan.OWN, _ROOT + plan.OWN),
        s.Remount(_ROOT + plan.OWN, _READ_ONLY | m.ATTR_NOEXEC),
        *([_interpreter(facts)] if shape.own_python else []),
        *(_changes() if shape.shows_changes else ()),
        s.Cover("/dev", f"{_ROOT}/dev", is_whole=True),
        s.Cover(f"{_AREA}/shm", f"{_ROOT}/dev/shm"),  # noqa: S108 - in the sandbox
        s.Mount("proc", f"{_ROOT}/proc", flags | m.MS_NOEXEC),
        *plan.own_files_of_proc(facts, shape),
    ]


def _volumes(shape: plan.Shape) -> List[s.Step]:
    """Attach volumes in the new root, so that a link in a path leads nowhere else.

    A link may lead to another place inside: posture compares where each volume is.
    """
    paths = dict.fromkeys(each for path, _ in shape.volumes for each in plan.above(path))
    return [
        *(s.Directory(path) for path in paths),
        *(s.Attach(path, IMAGE_FD + 1 + n) for n, (path, _) in enumerate(shape.volumes)),
    ]


def _lockdown(facts: plan.HostFacts, shape: plan.Shape) -> s.Lockdown:
    uid, gid = shape.image
    kept = ROOT_CAPABILITIES if uid == 0 else 0
    usual = plan.lockdown_of(facts, shape)
    return usual._replace(uid=uid, gid=gid, capabilities=kept, builds_as_root=True)
