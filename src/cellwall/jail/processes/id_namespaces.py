"""User namespaces that exist to map the ids of a mount's files, and for nothing else.

Used by `idmapper` and `jail.volumes.keeper`, which have one thread and the engine's rights (root).
The invariant: no process is in one of them, so they are no way to anything.
"""

from __future__ import annotations

import os
from typing import Dict, Tuple

from cellwall.linux.syscalls import id_maps

Ranges = Tuple[Tuple[int, int, int], ...]
"""First id on disk, first id that is shown for it, and the number of ids, of each range."""
_MOST_KEPT = 512
"""Most user namespaces that are kept: one for each sandbox whose ids were in use."""


class Namespaces:
    """The namespaces that this process has made, by the ranges that they map."""

    def __init__(self) -> None:
        """Make none yet."""
        self._known: Dict[Tuple[Ranges, Ranges], int] = {}

    def of(self, ranges: Ranges, groups: Ranges = ()) -> int:
        """Return a descriptor of a user namespace that maps `ranges`; it stays ours.

        `groups`: the ranges of groups, if they are others. Raises OSError.
        """
        key = (ranges, groups)
        if key not in self._known:
            while len(self._known) >= _MOST_KEPT:
                os.close(self._known.pop(next(iter(self._known))))
            self._known[key] = id_maps.namespace(_lines(ranges), _lines(groups))
        return self._known[key]


def _lines(ranges: Ranges) -> str:
    return "\n".join("{} {} {}".format(*each) for each in ranges)
