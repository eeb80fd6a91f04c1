"""Thaw guard: ends what is frozen once the engine that froze it has ended.

A process of its own beside the engine, with its rights, started at the first pause whose processes
would not end with their engine: those frozen in cgroup v1, whom no signal reaches, and containers,
which end by themselves when they read that the engine is gone. It reads which groups are frozen,
one a line; at the end of its input it kills what they list and thaws them. A killed guard costs
that; the next sweep ends what is left.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from cellwall.linux.cgroups.files import write
from cellwall.linux.cgroups.freezer import FILES
from cellwall.linux.cgroups.leftovers import kill_listed
from cellwall.model.errors import HostUnsupported


def main() -> None:
    """Read `+VERSION PATH` and `-VERSION PATH` until the end, then end what is left."""
    frozen: set[str] = set()
    for line in sys.stdin:
        word = line.rstrip("\n")
        if word.startswith("+"):
            frozen.add(word[1:])
        else:
            frozen.discard(word[1:])
    for word in frozen:
        version, _, path = word.partition(" ")
        name, thaw = FILES[int(version)]
        with contextlib.suppress(OSError, HostUnsupported):  # the group has ended
            kill_listed(Path(path))
            write(f"{path}/{name}", thaw)
