"""Loop engines: the engine of each event loop, for callers that did not create one.

`AsyncSandbox.create` and `arun` use it. It is not the synchronous library's engine, which has a
thread of its own (`embedded`). The invariant: an engine is closed when its loop is shut down, and a
forked child has none of its parent's engines.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from functools import partial

from cellwall.engine.engine import Engine

_loop_engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = (
    weakref.WeakKeyDictionary()
)


def loop_engine() -> Engine:
    """Return the engine of the running event loop; it is closed when the loop is shut down."""
    loop = asyncio.get_running_loop()
    engine = _loop_engines.get(loop)
    if engine is None:
        engine = _loop_engines[loop] = Engine(answers_first=True)
        keeper = _keep(engine)
        # At its end a loop closes started asynchronous generators (`shutdown_asyncgens`, which
        # `asyncio.run` calls): the only hook for closing the engine there.
        starting = asyncio.ensure_future(keeper.__anext__())
        starting.add_done_callback(partial(_hold, loop, keeper))
    return engine


_keepers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncIterator[None]] = (
    weakref.WeakKeyDictionary()
)


def _hold(
    loop: asyncio.AbstractEventLoop, keeper: AsyncIterator[None], _: asyncio.Future[None]
) -> None:
    _keepers[loop] = keeper


async def _keep(engine: Engine) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await engine.aclose()


def abandon_all() -> None:
    """Forget all engines in a forked child: their loops run in the parent only."""
    for engine in list(_loop_engines.values()):
        engine.abandon()
    _loop_engines.clear()
