"""Things that are closed at the end of a `with`, from ordinary and from asynchronous programs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closing:
    """Base of what holds a sandbox; subclasses say what `close` does."""

    def close(self) -> None:
        """Destroy its sandbox, if that is its own; idempotent."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do what `close` does for a caller on an event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        """Use it as a context manager that closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self) -> Self:
        """Use it as an asynchronous context manager that closes it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.aclose()
