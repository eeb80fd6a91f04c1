"""How often, and after how long, a broken connection is made again.

Not what may be repeated (`transport` decides that). The invariant: tries without progress are
bounded, so a server that is gone for good is an error within seconds.
"""

from __future__ import annotations

import asyncio
import random

from cellwall.model.errors import ServerUnreachable

DELAYS_S = (0.05, 0.2, 0.8, 2.0)
"""Before the second, third… try; each is shortened at random, so that clients do not march."""
_LASTING_S = 5.0
"""A connection on which a server held a call this long: something on the way dropped it."""
_WITHIN_S = 10.0
"""No try begins later than this after the first failure: those that time out are few."""


class Budget:
    """The tries that are left for one call."""

    def __init__(self, shown: str) -> None:
        """`shown` names the server in messages."""
        self._shown = shown
        self._left = list(DELAYS_S)
        self._began_s = asyncio.get_running_loop().time()
        self._failed_s: float | None = None
        """When it failed first since the last progress."""

    def progress(self) -> None:
        """Something arrived: the next failure is a first one again."""
        self._left = list(DELAYS_S)
        self._failed_s = None

    async def wait(self, error: Exception, *, was_held: bool = False) -> None:
        """Wait until it is time to try again; `ServerUnreachable` when that was tried enough.

        `was_held`: a server had the call when its connection broke, so that it lasted is progress.
        Not where we gave up waiting: time passes at a dead server, too.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if was_held and now_s - self._began_s >= _LASTING_S:
            self.progress()
        if self._failed_s is None:
            self._failed_s = now_s
        if not self._left or now_s - self._failed_s >= _WITHIN_S:
            raise unreachable(self._shown, error) from error
        await asyncio.sleep(self._left.pop(0) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        self._began_s = loop.time()


def unreachable(shown: str, error: Exception) -> ServerUnreachable:
    """Return what a caller is told when the server cannot be reached."""
    why = str(error) or type(error).__name__
    return ServerUnreachable(
        f"connect to {shown}: {why}",
        remedy="see that `cellwall serve` runs there, and CELLWALL_URL",
    )
