"""As whom containers run: ids of the host that no account has, another one for each in turn.

Without a user namespace of the daemon's a container's id is the host's, and 1000 is a person's on
most machines: what the kernel counts for a user (inotify, epoll watches, descriptors on their way)
would be taken from that person, and all containers would share it. The ids are the last 65536 of
those that systemd lists as unused; the jail takes none of them (`linux.uid_ranges`). Where the
daemon maps ids itself, who is 1000 inside is nobody outside already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from cellwall.jail.plan.plan import HOME, INSIDE_UID
from cellwall.model.errors import CapacityError

FIRST = 0x7FFF0000
COUNT = 512
"""Each has an account in the image, so that programs find a name and a home."""


def accounts() -> str:
    """Lines for the image's passwd(5), one for each id; all of them are `user`."""
    lines = (f"user:x:{FIRST + n}:{INSIDE_UID}::{HOME}:/bin/bash\n" for n in range(COUNT))
    return "".join(lines)


def maps_ids(security_options: Iterable[str]) -> bool:
    """Whether a daemon with these options gives containers ids of their own by itself."""
    names = {word for option in security_options for word in option.split(",")}
    return not names.isdisjoint({"name=userns", "name=rootless"})


class ContainerIds:
    """Those of one engine; it begins anywhere, so that others are not likely to be met."""

    def __init__(self) -> None:
        """None is taken."""
        self._next = int.from_bytes(os.urandom(4), "little") % COUNT
        self._taken: set[int] = set()

    def take(self) -> int:
        """One that no live container of ours has."""
        for step in range(COUNT):
            number = (self._next + step) % COUNT
            if number not in self._taken:
                self._next = (number + 1) % COUNT
                self._taken.add(number)
                return FIRST + number
        raise CapacityError("container ids: every one belongs to a live sandbox", retry_after_s=1.0)

    def give_back(self, uid: int) -> None:
        """Its container is gone."""
        self._taken.discard(uid - FIRST)
