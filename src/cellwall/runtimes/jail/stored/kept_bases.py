"""Bases of the lineages of kept sandboxes: one of each is made, in the background, and given out.

Used by `copying`. The first sandbox of a lineage that is kept begins it; no caller waits for it.
The invariant: what is given to a sandbox is the base of its own lineage.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from cellwall.model.errors import CellwallError, HostUnsupported

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Coroutine

    from cellwall.runtimes.jail.sandbox import JailSandbox
    from cellwall.runtimes.jail.stored.kept_base import KeptBase

_log = logging.getLogger("cellwall.engine")
_MOST_SAID = 300


class KeptBases:
    """What one runtime has made of them."""

    def __init__(
        self,
        make: Callable[[JailSandbox], Awaitable[KeptBase]],
        begin: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        """`make` makes the one of a sandbox's lineage; `begin` starts a task."""
        self._make = make
        self._begin = begin
        self._made: dict[str, asyncio.Task[KeptBase]] = {}
        """By lineage."""

    def give(self, sandbox: JailSandbox, lineages: Container[str]) -> None:
        """Have a sandbox keep its lineage's, once it is made; `lineages` are those in use."""
        making = self._made.get(sandbox.lineage)
        if making is None or _has_failed(making):
            self._forget_all_but(lineages)
            making = self._made[sandbox.lineage] = self._begin(self._begun(sandbox))
        if making.done():
            _give(sandbox, making)
        else:
            making.add_done_callback(partial(_give, sandbox))

    async def _begun(self, sandbox: JailSandbox) -> KeptBase:
        return await self._make(sandbox)

    def _forget_all_but(self, lineages: Container[str]) -> None:
        for lineage, making in list(self._made.items()):
            if lineage not in lineages and making.done():
                del self._made[lineage]
                _close(making)

    async def wait_made(self, within_s: float) -> None:
        """Wait until none is being made."""
        making = [each for each in self._made.values() if not each.done()]
        if making:
            await asyncio.wait(making, timeout=within_s)

    def close(self) -> None:
        """Close those that are made; sandboxes have descriptors of their own."""
        for making in self._made.values():
            if making.done():
                _close(making)
            else:
                making.add_done_callback(_close)
        self._made.clear()


def _has_failed(making: asyncio.Task[KeptBase]) -> bool:
    """Report whether none was made for want of what there may be now, such as room on a disk."""
    return (
        making.done()
        and not making.cancelled()
        and making.exception() is not None
        and not isinstance(making.exception(), HostUnsupported)
    )


def _close(making: asyncio.Task[KeptBase]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()


def _give(sandbox: JailSandbox, making: asyncio.Task[KeptBase]) -> None:
    """Have a sandbox keep what was made, or why nothing was."""
    if making.cancelled():
        return
    error = making.exception()
    try:
        if error is None:
            sandbox.keep_base(making.result())
        else:
            sandbox.keep_base(None, str(error)[:_MOST_SAID])
    except (CellwallError, OSError) as refusal:  # what was kept before stays kept
        error = refusal
    if error is not None:
        _log.warning("%s: copies of it end with this server: %s", sandbox.spec.sandbox_id, error)
