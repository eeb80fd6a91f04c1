"""Closing: objects that close at the end of a `with`, in synchronous and asynchronous programs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closing:
    """Base of objects that hold a sandbox; subclasses implement `close`."""

    def close(self) -> None:
        """Destroy its sandbox, if it created it; idempotent."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do what `close` does for a caller on an event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        """Enter a context manager that closes the object."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the object."""
        self.close()

    async def __aenter__(self) -> Self:
        """Enter an asynchronous context manager that closes the object."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the object."""
        await self.aclose()
