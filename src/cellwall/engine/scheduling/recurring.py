"""What is asked for again and again: the memory of a pool of what it had nothing parked for.

Used by `pool`. It knows keys and times, and not what they stand for. What is one of many kinds is
not asked for often, however long that goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable

_LATEST = 16
"""Number of keys that are remembered."""
_OFTEN = 4
"""How many of them have to be the same: a pool has buckets for four kinds."""


class Recurring:
    """The latest keys, and when each was asked for."""

    def __init__(self, most_s: float) -> None:
        """`most_s`: seconds after which a key is as good as never asked for."""
        self._most_s = most_s
        self._asked: deque[tuple[Hashable, float]] = deque(maxlen=_LATEST)

    def is_frequent(self, key: Hashable) -> bool:
        """Note that `key` is asked for; return whether a quarter of the latest are the same."""
        now = time.monotonic()
        self._asked.append((key, now))
        same = [at for each, at in self._asked if each == key and now - at <= self._most_s]
        return len(same) >= _OFTEN
