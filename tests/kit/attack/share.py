"""The share of repeated tests that one run takes: `CELLWALL_TEST_AGAIN=TURN/SHARES`, all without.

Attacks, walls of the network and of volumes run whole in the jail, programs of the main languages
as well. What repeats them in other places (containers, gVisor, roots of images, copies, further
languages) is most of the time of `make test`: CI takes a fifth of that, another one with each
commit, so that five landings have run all.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping

VARIABLE = "CELLWALL_TEST_AGAIN"


def chosen(environment: Mapping[str, str] = os.environ) -> Callable[[str], bool]:
    """Return what says of a test's id whether this run takes it. Raises ValueError."""
    said = environment.get(VARIABLE, "0/1")
    turn, _, shares = said.partition("/")
    if not (turn.isdecimal() and shares.isdecimal() and int(turn) < int(shares)):
        raise ValueError(f"{VARIABLE}: {said!r} is no turn out of shares, such as 0/3")
    return lambda name: zlib.crc32(name.encode()) % int(shares) == int(turn)
