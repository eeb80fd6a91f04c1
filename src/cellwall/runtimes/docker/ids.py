"""Container user ids: host ids without an account, a different one for each container.

Without a user namespace of the daemon a container's id is the host's, and 1000 is a person's
account on most machines: per-user kernel counts (inotify, epoll watches, descriptors in flight)
would be charged to that person, and all containers would share them. The ids are of those that
systemd lists as unused, behind the jail's and before those of images on disk (`linux.uid_ranges`).
Where the daemon maps ids itself, user 1000 inside already has no account outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from cellwall.jail.plan.plan import HOME, INSIDE_UID
from cellwall.model.errors import CapacityError

FIRST = 0x7FFD0000
COUNT = 512
"""Number of ids. Each has an account in the image, so that programs find a name and a home."""


def accounts() -> str:
    """Return lines for the image's passwd(5), one for each id; all have the name `user`."""
    lines = (f"user:x:{FIRST + n}:{INSIDE_UID}::{HOME}:/bin/bash\n" for n in range(COUNT))
    return "".join(lines)


def maps_ids(security_options: Iterable[str]) -> bool:
    """Report whether a daemon with these options maps the ids of containers by itself."""
    names = {word for option in security_options for word in option.split(",")}
    return not names.isdisjoint({"name=userns", "name=rootless"})


class ContainerIds:
    """Ids of one engine; it begins at a random one, so that engines are unlikely to collide."""

    def __init__(self) -> None:
        self._next = int.from_bytes(os.urandom(4), "little") % COUNT
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return an id that no live container of this engine has."""
        for step in range(COUNT):
            number = (self._next + step) % COUNT
            if number not in self._taken:
                self._next = (number + 1) % COUNT
                self._taken.add(number)
                return FIRST + number
        raise CapacityError("container ids: every one belongs to a live sandbox", retry_after_s=1.0)

    def give_back(self, uid: int) -> None:
        """Release the id of a removed container."""
        self._taken.discard(uid - FIRST)
