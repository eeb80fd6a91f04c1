"""What is asked for again: the memory of a pool of what it had nothing parked for.

Used by `pool`. It keeps keys and times, and decides nothing else. Its size is bounded, so a caller
who asks for something else each time is not remembered for long.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable

_MOST = 64
"""Maximum number of keys that are remembered."""


class Recurring:
    """Keys, and when each was last asked for."""

    def __init__(self, most_s: float) -> None:
        """`most_s`: seconds after which a key is as good as never asked for."""
        self._most_s = most_s
        self._asked_at: OrderedDict[Hashable, float] = OrderedDict()

    def is_again(self, key: Hashable) -> bool:
        """Note that `key` is asked for; return whether it was before."""
        now = time.monotonic()
        before = self._asked_at.pop(key, None)
        self._asked_at[key] = now
        if len(self._asked_at) > _MOST:
            self._asked_at.popitem(last=False)
        return before is not None and now - before <= self._most_s
