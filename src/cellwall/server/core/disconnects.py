"""Whether the client is still there, for who waits for something else than what it says.

Not `Call.wait`, which reads on and so hears of it at once; nobody may read on for a handler that
takes a body or messages itself, and waits for the inside in between. The invariant: what a client
has left ends within seconds, whatever the inside does. Whoever would hear of it hears of it first:
the orderly end is theirs.
"""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.server.core.request import ClientGone

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from cellwall.server.core.request import Call

_T = TypeVar("_T")
_LOOK_S = 1.0
"""Between two looks; at the second in a row that finds nobody the work ends."""
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


async def unless_gone(call: Call, work: Coroutine[Any, Any, _T]) -> _T:
    """Return what `work` returns; if the client leaves, cancel it and raise `ClientGone`."""
    # Not in the server's group: its errors are the client's, and end here.
    doing = asyncio.ensure_future(work)
    try:
        is_gone = await _wait(call, doing)
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
    try:
        if is_gone:
            raise ClientGone
        return doing.result()
    finally:
        del doing  # an error has this frame, and it would have the error


async def _wait(call: Call, doing: asyncio.Future[Any]) -> bool:
    """Return when it is done; True if the client has left before."""
    was_gone = False
    while True:
        await asyncio.wait((doing,), timeout=_LOOK_S)
        if doing.done():
            return False
        is_gone = has_left(call)
        if was_gone and is_gone:
            return True
        was_gone = is_gone


def has_left(call: Call) -> bool:
    """Report whether the client closed its connection, as far as the kernel knows.

    Also while nothing is read of it. What it sent before it left has to fit the kernel's room: the
    end comes behind it.
    """
    transport: asyncio.Transport | None
    transport = call.scope.get("extensions", {}).get("cellwall.transport")
    if transport is None:  # of this process itself
        return False
    if transport.is_closing():
        return True
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), _GONE)
    return bool(poll.poll(0))
