"""Containers on images: what their create request has besides that of a template, and their ids.

The host's half of `inside_image`. The container begins as the host's root with the capabilities
that building a root needs, and runs only our code until it has left them; what it then has is
compared by `posture.verify_on_image`. The invariant: each sandbox has a range of host ids that no
other has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from cellwall.jail.plan import image_plan, plan
from cellwall.linux import uid_ranges
from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.docker import inside_image
from cellwall.runtimes.docker.container import OWN_INODES_ON_IMAGE
from cellwall.runtimes.docker.seccomp_profile import profile
from cellwall.runtimes.shared.environment import INTERPRETER, OWN_PYTHON, image_environment

if TYPE_CHECKING:
    from pathlib import Path

    from cellwall.model.limits import Limits
    from cellwall.runtimes.base import SandboxSpec
    from cellwall.runtimes.roots import ImageRoot, VolumeRoot

WORK_AREA = ("/",)
"""The one file system of such a sandbox that can be written to."""
_CAPABILITIES = (
    *("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "CHOWN"),
    *("DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD"),
)
"""What building the root needs; the last ones are used by the overlay for changes of any user."""


class Ranges:
    """Ranges of host ids of one engine's sandboxes on images."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._block: uid_ranges.UidRange | None = None
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return the first id of a range that no live sandbox has. Raises CapacityError."""
        if self._block is None:
            self._block = uid_ranges.acquire_block()
        first = self._block.host_uid(self._block.take())
        self._taken.add(first)
        return first

    def give_back(self, first: int) -> None:
        """Release the range of a removed container; other ids are not heeded."""
        if self._block is not None and first in self._taken:
            self._taken.discard(first)
            self._block.give_back(first - self._block.base)

    def close(self) -> None:
        """Let other engines have the ranges."""
        if self._block is not None:
            self._block.release()
            self._block = None


def check(name: str, options: Iterable[str], *, maps_ids: bool, has_own_kernel: bool) -> None:
    """Raise HostUnsupported if a daemon with these security options cannot give an image's root."""
    if has_own_kernel:
        problem, remedy = "its kernel cannot build such a root", "use runtime 'gvisor' or 'jail'"
    elif maps_ids:
        problem = "a daemon that maps ids itself has too few for an image"
        remedy = "use a daemon without userns-remap that runs as root, or runtime 'jail'"
    elif uid_ranges.is_rootless():
        problem = "an ordinary user's engine has no ids of the host for it"
        remedy = "use runtime 'jail', or run cellwall as root"
    elif any(option.startswith("name=selinux") for option in options):
        problem, remedy = "it is not tried under SELinux", "use runtime 'jail'"
    else:
        return
    raise HostUnsupported("images", f"image: the runtime {name!r}: {problem}", remedy=remedy)


@cache
def _seccomp() -> str:
    return json.dumps(profile(builds_root=True), separators=(",", ":"))


def request(
    body: Mapping[str, Any], image: ImageRoot, interpreter: Path, options: Iterable[str]
) -> dict[str, Any]:
    """Return the create request of a container on an image, from that of one on a template.

    `options`: the daemon's security options.
    """
    confined = ["no-new-privileges:true", f"seccomp={_seccomp()}"]
    if any(option.startswith("name=apparmor") for option in options):
        confined.append("apparmor=unconfined")  # its usual profile forbids every mount
    mounts = ((image.tree, inside_image.TREE), (str(interpreter), inside_image.INTERPRETER))
    own = {
        "CapAdd": list(_CAPABILITIES),
        "SecurityOpt": confined,
        "Tmpfs": {},
        "Mounts": [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
            for source, target in mounts
        ],
        "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
    }
    return {
        **body,
        "User": "0:0",
        "Entrypoint": [INTERPRETER, "-I", "-S", plan.GUEST_PATH, "image"],
        "HostConfig": {**body["HostConfig"], **own},
    }


def order(limits: Limits, first: int, volumes: Sequence[VolumeRoot] = ()) -> dict[str, Any]:
    """Return what `inside_image.build` reads."""
    inodes = limits.inodes + OWN_INODES_ON_IMAGE + sum(each.path.count("/") for each in volumes)
    return {
        "options": f"size={limits.disk_mb}m,nr_inodes={inodes},mode=755",
        "base": uid_ranges.IMAGE_BASE,
        "first": first,
        "ids": image_plan.IDS,
        "own": plan.OWN,
        "own_python": plan.OWN_PYTHON,
        "guest": plan.GUEST_PATH,
        "python": list(OWN_PYTHON),
        "volumes": [each.path for each in volumes],
    }


def lock(image: ImageRoot) -> dict[str, int]:
    """Return what `inside_image.become_user` reads."""
    kept = image_plan.ROOT_CAPABILITIES if image.uid == 0 else 0
    return {"uid": image.uid, "gid": image.gid, "capabilities": kept}


def guest(spec: SandboxSpec, image: ImageRoot) -> dict[str, Any]:
    """Return the guest's configuration."""
    return {
        "home": image.working_dir,
        "is_image": True,
        "own_python": list(OWN_PYTHON),
        "env": {**image_environment(image, spec.limits.cpus), **spec.env},
        "contexts": list(spec.contexts),
        "language": spec.language,
        "preload": [],
    }
