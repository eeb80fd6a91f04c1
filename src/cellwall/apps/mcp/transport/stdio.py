"""The process of `cellwall mcp`: one client on stdin and stdout, over an engine in this process.

Not what is said (`dialogue`), which is loaded while the first sandbox starts. The invariants: the
real stdout carries nothing but the protocol, what else is written goes to stderr; and when stdin
ends or a signal comes, every sandbox is destroyed before the process is, however many signals come.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cellwall.apps.mcp.library import Embedded
from cellwall.apps.mcp.session import Session
from cellwall.apps.mcp.tools.catalog import Catalog
from cellwall.model.errors import CellwallError
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from cellwall.engine.engine import Engine


def run(engine_of: Callable[[], Engine], budget_chars: int) -> None:
    """Serve on an event loop of its own; SIGTERM and SIGINT end it as the end of stdin does."""

    async def main() -> None:
        await _serve(engine_of(), budget_chars)

    asyncio.run(main())


async def _serve(engine: Engine, budget_chars: int) -> None:
    catalog = Catalog(engine.state_dir)
    session = Session(Embedded(engine), catalog, budget_chars)
    tasks = Tasks()
    talk = asyncio.ensure_future(_talk(session, catalog))
    # Only the talk ends by a signal: its client sends one when the end takes too long, too.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, talk.cancel)
    tasks.spawn(_warm(engine, catalog))
    await asyncio.wait({talk})
    await tasks.cancel()
    await session.close()
    await engine.aclose()
    with contextlib.suppress(asyncio.CancelledError):
        talk.result()


async def _talk(session: Session, catalog: Catalog) -> None:
    dialogue = await asyncio.to_thread(_loaded)
    with _own_streams() as (source, sink):
        await dialogue.speak(session, catalog, source, sink)


def _loaded() -> Any:  # noqa: ANN401 - a module
    """Import the SDK; the collector would look through its classes over and over meanwhile."""
    gc.disable()
    try:
        return import_module("cellwall.apps.mcp.transport.dialogue")
    finally:
        gc.freeze()
        gc.enable()


async def _warm(engine: Engine, catalog: Catalog) -> None:
    """Have a sandbox ready before the first call; what fails here, the call will say."""
    with contextlib.suppress(CellwallError):
        await engine.run("0", template=catalog.available().best_template)


@contextlib.contextmanager
def _own_streams() -> Iterator[tuple[int, int]]:
    """Give stdin and stdout as descriptors of our own; 0 is empty then, and 1 is stderr.

    Whatever prints, here or in a child, cannot break the protocol.
    """
    source, sink = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    try:
        yield source, sink
    finally:
        os.dup2(source, 0)
        os.dup2(sink, 1)
        os.close(source)
        os.close(sink)
