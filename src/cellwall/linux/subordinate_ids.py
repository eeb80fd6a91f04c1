"""Finds ids of the host that an ordinary user may map beside its own, as rootless Podman does.

Runs in the engine process, called once by `uid_ranges`. A user's ids are listed in subuid(5) and
subgid(5) and mapped by newuidmap(1); the root of a container may map the ids of its own user
namespace. Whether that works is tried: a mount without set-uid, no_new_privs and the filter of a
container all forbid it.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cellwall.linux.syscalls import id_maps
from cellwall.linux.trial import trial

SLICE = 2048
"""Number of ids that one fork-server takes, which is as many live sandboxes as it may have."""
_TOOLS = {"uid": "newuidmap", "gid": "newgidmap"}
_LISTS = {"uid": Path("/etc/subuid"), "gid": Path("/etc/subgid")}
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"
_NOBODY = 65_534
KEPT = 8 * SLICE
"""Number of ids that stay for fork-servers where images have some, too."""
_LEAST_OF_IMAGES = 32_768
EXAMPLE = "589824-655359"
"""A range for usermod(8) that no account of a usual machine has."""

Extent = tuple[int, int]
"""First id and number of ids."""


@dataclass(frozen=True, slots=True)
class ImageIds:
    """Ids of the host for images: for the ids 0 to `count` - 1 of an image, and for 65,534.

    Files of images have them on disk, and all sandboxes on images while they run. 65,534 is the
    account `nobody` of most images.
    """

    uid: int
    gid: int
    count: int
    tools: tuple[tuple[str, str], ...]

    @property
    def total(self) -> int:
        """Number of ids of the host: `count`, and behind them the one for 65,534."""
        return self.count + 1

    @property
    def lines(self) -> id_maps.Lines:
        """The map from an image's ids to these."""
        return ((0, 0, self.count), (_NOBODY, self.count, 1))

    def as_json(self) -> dict[str, Any]:
        """Return plain data for `id_maps.enter`."""
        return _as_json(self.uid, self.gid, self.total, self.tools)


@dataclass(frozen=True, slots=True)
class Outer:
    """The ids that can be mapped: as many user ids as group ids, and the programs that map them."""

    uid: int
    gid: int
    count: int
    tools: tuple[tuple[str, str], ...] = ()
    """Paths of the mapping programs by kind; empty where this process may write the maps itself."""
    behind: ImageIds | None = None
    """Ids that are mapped behind these."""

    @property
    def of_images(self) -> ImageIds | None:
        """The ids of images: the first ones, in every engine the same, as files on disk have them.

        None if there are too few. Hardly any image has files of the ids that are not mapped.
        """
        count = min(_NOBODY, self.count - KEPT - 1)
        if count < _LEAST_OF_IMAGES:
            return None
        return ImageIds(self.uid, self.gid, count, self.tools)

    @property
    def slices(self) -> int:
        """Number of slices for fork-servers."""
        taken = 0 if self.of_images is None else self.of_images.total
        return (self.count - taken) // SLICE

    def part(self, number: int) -> Outer:
        """Return slice `number`, counted from the end: Podman and others take the first ones."""
        skipped = self.count - (number + 1) * SLICE
        return Outer(self.uid + skipped, self.gid + skipped, SLICE, self.tools)

    def as_json(self) -> dict[str, Any]:
        """Return plain data for `id_maps.enter`."""
        own = _as_json(self.uid, self.gid, self.count, self.tools)
        return own if self.behind is None else {**own, "images": self.behind.as_json()}


def _as_json(uid: int, gid: int, count: int, tools: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return {"uid": [uid, count], "gid": [gid, count], "tools": dict(tools)}


class Asked(NamedTuple):
    """The ids found; or the reason why there are none, and the remedy."""

    outer: Outer | None
    detail: str
    remedy: str = ""


def ask() -> Asked:
    """Look for ids, and try to map them."""
    asked = _of_our_own() if os.geteuid() == 0 else _of_the_lists()
    if asked.outer is None:
        return asked
    problem = trial(partial(id_maps.enter, asked.outer.part(0).as_json()))
    if not problem:
        return asked
    return Asked(
        None,
        f"those there are cannot be mapped: {problem}",
        "allow set-uid programs where this process is started: no NoNewPrivileges, no nosuid mount",
    )


def listed(text: str, name: str, number: int) -> Extent | None:
    """Return the largest extent that a list in the form of subuid(5) gives to a user."""
    found = []
    for line in text.splitlines():
        owner, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if owner in {name, str(number)} and first.isdecimal() and count.isdecimal():
            found.append((int(first), int(count)))
    return max(found, key=lambda extent: extent[1], default=None)


def mapped(text: str) -> Extent | None:
    """Return the upper half of an id map's largest extent: a container's accounts are below."""
    extents = [tuple(int(word) for word in line.split()) for line in text.splitlines()]
    if not extents:
        return None
    first, _, count = max(extents, key=lambda extent: extent[2])
    start, end = first + count // 2, first + count
    if start <= _NOBODY < end:
        end = _NOBODY
    return (start, end - start) if end > start else None


def _of_the_lists() -> Asked:
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    remedy = f"as root: apt-get install uidmap; usermod --add-subuids {EXAMPLE} "
    remedy += f"--add-subgids {EXAMPLE} {name} (ids of no account)"
    import shutil  # root needs no tool

    tools = {kind: shutil.which(tool, path=_PATH) for kind, tool in _TOOLS.items()}
    missing = [tool for kind, tool in _TOOLS.items() if not tools[kind]]
    if missing:
        return Asked(None, f"{' and '.join(missing)} are not installed", remedy)
    extents = [_listed_in(path, name) for path in _LISTS.values()]
    found = tuple((kind, path) for kind, path in tools.items() if path)
    where = f"{name} has no {SLICE} ids in /etc/subuid and /etc/subgid"
    return _together(extents, found, where, remedy)


def _listed_in(path: Path, name: str) -> Extent | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return listed(text, name, os.geteuid())


def _of_our_own() -> Asked:
    extents = [
        mapped(Path(f"/proc/self/{kind}_map").read_text(encoding="ascii")) for kind in _TOOLS
    ]
    remedy = "give the container a user namespace of 65536 ids, SETUID, SETGID and SETFCAP"
    return _together(extents, (), f"this user namespace has no {SLICE} ids to spare", remedy)


def _together(
    extents: list[Extent | None], tools: tuple[tuple[str, str], ...], lack: str, remedy: str
) -> Asked:
    uid, gid = extents
    count = 0 if uid is None or gid is None else min(uid[1], gid[1])
    if uid is None or gid is None or count < SLICE:
        return Asked(None, lack, remedy)
    return Asked(Outer(uid[0], gid[0], count, tools), f"{count} from {uid[0]} on")
