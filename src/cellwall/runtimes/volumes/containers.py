"""Volumes of containers: attached by the host once a container runs and waits for its order.

The container engine learns nothing of them: it could bind only a path of the host, and a mount
there would outlive its engine. SECURITY: they are attached before the container's first process,
which is our own code, has read anything, so nothing hostile has touched its paths yet.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cellwall.jail.plan import image_plan, plan
from cellwall.linux import uid_ranges
from cellwall.model.errors import HostUnsupported
from cellwall.runtimes.base import refuse_hiding

if TYPE_CHECKING:
    from cellwall.runtimes.base import SandboxSpec
    from cellwall.runtimes.roots import VolumeRoot
    from cellwall.runtimes.volumes.holder import Holder, Ids


class Shown(NamedTuple):
    """How a container is shown volumes."""

    owner: tuple[int, int]
    """The host's ids of user and group that directories on the way belong to."""
    users: Ids
    groups: Ids = ()
    """Ranges of groups if they are not those of users."""


def on_template(uid: int, gid: int) -> Shown:
    """Return how the one user of a container on a template, with these ids, is shown volumes."""
    on_disk = uid_ranges.IMAGE_BASE + plan.INSIDE_UID
    return Shown((uid, gid), ((on_disk, uid, 1),), ((on_disk, gid, 1),))


def on_image(first: int) -> Shown:
    """Return how a container on an image, whose root is `first` on the host, is shown volumes."""
    return Shown((0, 0), ((uid_ranges.IMAGE_BASE, first, image_plan.IDS),))


def check(spec: SandboxSpec, name: str, *, maps_ids: bool, has_own_kernel: bool) -> None:
    """Raise HostUnsupported if such a daemon's containers cannot be given volumes.

    UsageError if one would hide the template's interpreter.
    """
    if os.geteuid() != 0:
        problem, remedy = "an ordinary user cannot mount one", "run cellwall as root"
    elif has_own_kernel:
        problem = "its kernel has the files that its daemon names, and no others"
        remedy = "use runtime 'gvisor'"
    elif maps_ids:
        problem = "a daemon that maps ids itself has not those of a volume's view"
        remedy = "use a daemon without userns-remap that runs as root, or runtime 'jail'"
    else:
        refuse_hiding(spec)
        return
    raise HostUnsupported("volumes", f"volumes: the runtime {name!r}: {problem}", remedy=remedy)


async def attach(
    holder: Holder,
    volumes: Sequence[VolumeRoot],
    paths: Sequence[str],
    shown: Shown,
    first: tuple[int, Callable[[], None]],
) -> None:
    """Attach volumes at paths of a container's root, where its first process waits.

    `first`: that process, and what raises if it is none of this container. Raises that, OSError,
    HostUnsupported, SandboxBroken.
    """
    pid, verify = first
    with contextlib.ExitStack() as held:
        process = os.pidfd_open(pid)
        held.callback(os.close, process)
        verify()  # after its descriptor was opened, which another process cannot get
        views = []
        for each in volumes:
            views.append(await holder.view(each, shown.users, shown.groups))
            held.callback(os.close, views[-1])
        await holder.attach(process, views, paths, shown.owner)
