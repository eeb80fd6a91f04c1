"""Fork-servers of tests that rehearse, as those of users do, and all the others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from cellwall.jail.fast import switch

UNREHEARSED = "unrehearsed"
"""The variable's value in tests without the fixture `rehearsed`."""


@contextlib.contextmanager
def rehearsing() -> Iterator[None]:
    """Have what starts in the block rehearse, unless the whole run is to have nothing fast."""
    before = os.environ.get(switch.VARIABLE)
    if before == UNREHEARSED:
        del os.environ[switch.VARIABLE]
    try:
        yield
    finally:
        if before is not None:
            os.environ[switch.VARIABLE] = before
