"""Detection of a client's disconnect while a handler waits for the sandbox.

`Request.wait` reads the connection and so learns of a disconnect at once; it cannot be used by a
handler that reads the body or messages itself and waits for the sandbox in between. The invariant:
work whose client has left ends within seconds, whatever the sandbox does. A handler that would see
the disconnect itself sees it first: the orderly end is left to it.
"""

from __future__ import annotations

import asyncio
import select
from typing import TYPE_CHECKING, Any, TypeVar

from cellwall.server.core.request import ClientGone

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from cellwall.server.core.request import Request

_T = TypeVar("_T")
_LOOK_S = 1.0
"""Seconds between two looks; the work ends at the second look in a row without a client."""
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Return what `work` returns; if the client leaves, cancel it and raise `ClientGone`."""
    # Not in the server's task group: an error of `work` is the client's, and ends here.
    doing = asyncio.ensure_future(work)
    try:
        is_gone = await _wait(request, doing)
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
    try:
        if is_gone:
            raise ClientGone
        return doing.result()
    finally:
        del doing  # an error holds this frame, which would hold the error


async def _wait(request: Request, doing: asyncio.Future[Any]) -> bool:
    """Return when `doing` is done; True if the client has left before."""
    was_gone = False
    while True:
        await asyncio.wait((doing,), timeout=_LOOK_S)
        if doing.done():
            return False
        is_gone = has_left(request)
        if was_gone and is_gone:
            return True
        was_gone = is_gone


def has_left(request: Request) -> bool:
    """Report whether the client closed its connection, as far as the kernel knows.

    Works also while the connection is not read. What the client sent before it left must fit into
    the kernel's buffer, because the end of the stream comes behind it.
    """
    transport: asyncio.Transport | None
    transport = request.scope.get("extensions", {}).get("cellwall.transport")
    if transport is None:
        return False
    if transport.is_closing():
        return True
    connection = transport.get_extra_info("socket")
    if connection is None:  # the request comes from this process itself
        return False
    poll = select.poll()
    poll.register(connection.fileno(), _GONE)
    return bool(poll.poll(0))
