"""A transaction on a work area: rolled back if its block raises, kept otherwise.

Used by the library and the SDK, whose `files` have it as a method. The invariant: an exception of
the block is the one that is raised, unless the rollback itself fails, which is then its cause.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol

from cellwall.model.errors import SandboxUnavailable

if TYPE_CHECKING:
    from cellwall.model.history import Checkpoint, Rollback


class HasHistory(Protocol):
    """The files of a sandbox, as far as a transaction needs them."""

    async def checkpoint(self, name: str | None = ...) -> Checkpoint:
        """Keep the work area."""

    async def rollback(self, checkpoint_id: str) -> Rollback:
        """Make the work area what it was."""

    async def drop(self, checkpoint_id: str) -> None:
        """Forget a checkpoint."""


@contextlib.asynccontextmanager
async def transaction(files: HasHistory) -> AsyncIterator[Checkpoint]:
    """Make a checkpoint for the block; roll back to it if the block raises."""
    made = await files.checkpoint()
    try:
        yield made
    except BaseException:
        with contextlib.suppress(SandboxUnavailable):  # nothing is left to be rolled back
            await files.rollback(made.id)
            await files.drop(made.id)
        raise
    with contextlib.suppress(SandboxUnavailable):
        await files.drop(made.id)
