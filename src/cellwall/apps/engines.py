"""Engines for one command: opened, used and closed by this process.

Called by the commands, the demo and the bench. It does not compose a server. Invariant: a caller
that opens an engine here closes it, even when the command fails, so that no sandbox and no
fork-server outlives the command.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cellwall.engine.engine import Engine
    from cellwall.runtimes.base import AheadOfEngine


def state() -> Path:
    """Return this user's state directory."""
    from cellwall.engine.templates.place import state_dir

    return state_dir()


def make_engine(
    pool: int = 0, *, answers_first: bool = False, head_start: AheadOfEngine | None = None
) -> Engine:
    """Return an engine that parks up to `pool` sandboxes; 0 is right for a single run."""
    from cellwall.engine.engine import Engine
    from cellwall.engine.policy.settings import EngineSettings

    settings = replace(EngineSettings.from_environment(), pool_min=pool, pool_max=pool)
    return Engine(state(), settings, answers_first=answers_first, head_start=head_start)


@asynccontextmanager
async def open_engine(
    pool: int = 0, *, answers_first: bool = False, head_start: AheadOfEngine | None = None
) -> AsyncIterator[Engine]:
    """Open an engine for the length of a block."""
    engine = make_engine(pool, answers_first=answers_first, head_start=head_start)
    try:
        yield engine
    finally:
        await engine.aclose()


async def wait_parked(engine: Engine) -> None:
    """Return when the pool is full again and all used sandboxes are destroyed."""
    await engine.pool.wait_buried()
    await engine.pool.wait_full()
