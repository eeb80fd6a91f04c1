"""Bases beyond their engine: what the next server needs to copy a sandbox that it takes over.

`copying` makes one for each lineage of which a sandbox is kept, and gives it to each of them;
`kept_sandboxes` puts it with the keeper, in files without a name, and takes it back. The invariant:
a file that was given to sandboxes stays locked, because each copy of its descriptor is of one open
file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import SandboxBroken
from cellwall.runtimes.lineages import LineageFacts, stored_lineage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.runtimes.jail.stored.base import Base

_CHUNK_BYTES = 1 << 20
_MOST_MAPS_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class KeptBase:
    """The base of a lineage, as it is kept with sandboxes; owns its descriptors.

    Sandboxes share one, so that a thousand of them need no more descriptors than one.
    """

    lineage: str
    """A name that begins with `STORED`."""
    fingerprint: Mapping[str, str]
    base: int
    maps: int
    """Descriptor of a file that no sandbox gets."""
    users: int = 1
    """Number of those that have still to close it."""

    @property
    def files(self) -> tuple[int, int]:
        """Both descriptors, in the order in which they are kept."""
        return self.base, self.maps

    def said(self) -> dict[str, Any]:
        """Return what a record says of it, as JSON's values."""
        return {"lineage": self.lineage, "fingerprint": dict(self.fingerprint)}

    def again(self) -> KeptBase:
        """Return the same for one user more."""
        self.users += 1
        return self

    def is_one_with(self, other: KeptBase) -> bool:
        """Report whether another one is of the same file."""
        ours, theirs = os.fstat(self.base), os.fstat(other.base)
        return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)

    def facts(self) -> LineageFacts:
        """Return what `StoredLineages.adopt` takes, with a descriptor of its own."""
        size = os.fstat(self.maps).st_size
        if size > _MOST_MAPS_BYTES:
            raise SandboxBroken(f"copy: the map of its base has {size} bytes")
        maps = os.pread(self.maps, size, 0)
        return LineageFacts(self.fingerprint, os.dup(self.base), maps)

    def close(self) -> None:
        """Give it up for one user; the last one closes both."""
        self.users -= 1
        if not self.users:
            for fd in self.files:
                os.close(fd)


async def made(base: Base, fingerprint: Mapping[str, str], lineage: str = "") -> KeptBase:
    """Return a base as it is to be kept; its name is made of its content if it has none yet."""
    own = os.dup(base.fd)
    try:
        maps = os.memfd_create("maps", os.MFD_CLOEXEC)
        try:
            os.write(maps, base.maps)
            name = lineage or await asyncio.to_thread(_name, own, base.maps)
            return KeptBase(name, fingerprint, own, maps)
        except BaseException:
            os.close(maps)
            raise
    except BaseException:
        os.close(own)
        raise


def _name(fd: int, maps: bytes) -> str:
    """Return the name that a stored snapshot of the lineage has, too."""
    digest, position = hashlib.sha256(), 0
    while chunk := os.pread(fd, _CHUNK_BYTES, position):
        position += len(chunk)
        digest.update(chunk)
    return stored_lineage(digest.hexdigest(), hashlib.sha256(maps).hexdigest())
