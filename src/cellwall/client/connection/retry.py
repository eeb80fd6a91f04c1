"""Retries: how often, and after what delay, a broken connection is made again.

`transport` decides what may be repeated. The invariant: tries without progress are bounded, so a
server that is permanently gone becomes an error within seconds.
"""

from __future__ import annotations

import asyncio
import random

from cellwall.model.errors import ServerUnreachable

DELAYS_S = (0.05, 0.2, 0.8, 2.0)
"""Seconds before the second, third… try; each is shortened at random, so that clients do not retry
in step."""
_LASTING_S = 5.0
"""Seconds for which a server held a call, above which a lost connection counts as dropped on the
way."""
_WITHIN_S = 10.0
"""Seconds after the first failure within which a new try may begin: few tries that time out fit
in."""


class Budget:
    """The tries that are left for one call."""

    def __init__(self, shown: str, servers: int = 1) -> None:
        """`shown` names the server in messages; of several each has all tries, without delay."""
        self._shown = shown
        at_once = (0.0,) * (servers - 1)
        self._delays_s = (*at_once, *(each for one in DELAYS_S for each in (one, *at_once)))
        self._left = list(self._delays_s)
        self._began_s = asyncio.get_running_loop().time()
        self._failed_s: float | None = None
        """Time of the first failure since the last progress."""

    def progress(self) -> None:
        """Record that data arrived: the next failure counts as the first again."""
        self._left = list(self._delays_s)
        self._failed_s = None

    async def wait(self, error: Exception, *, was_held: bool = False) -> None:
        """Wait until the next try; `ServerUnreachable` when no tries are left.

        `was_held`: a server had the call when its connection broke, so a long wait counts as
        progress. It does not after a timeout of the client: time also passes at a dead server.
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
    """Return the caller's error for a server that cannot be reached."""
    why = str(error) or type(error).__name__
    return ServerUnreachable(
        f"connect to {shown}: {why}",
        remedy="see that `cellwall serve` runs there, and CELLWALL_URL",
    )
