"""The one switch for everything in this folder: the environment variable `CELLWALL_FAST`.

Read once by each jail runtime in the engine process, which tells its fork-servers. The invariant:
with `CELLWALL_FAST=0` only time and memory differ; the walls, limits and verdicts are the same.
`CELLWALL_FAST=unrehearsed` leaves out the rehearsals alone: they are most of the time that a
fork-server takes before it is ready, and pay off with many sandboxes.
"""

from __future__ import annotations

import os

VARIABLE = "CELLWALL_FAST"


def is_on() -> bool:
    """Whether starts are to be made fast: yes, unless the variable is `0`."""
    return os.environ.get(VARIABLE) != "0"


def is_rehearsed() -> bool:
    """Whether a fork-server rehearses what its sandboxes will do."""
    return os.environ.get(VARIABLE) not in {"0", "unrehearsed"}
