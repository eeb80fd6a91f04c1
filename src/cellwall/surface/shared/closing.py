"""Objects that close at the end of a `with` or `async with`, written once.

Bases of the faces of a sandbox in the library, the SDK and the integrations. Not for objects that
have to be started when they are entered. The invariant: leaving the block closes, whatever the
reason, and an exception of the block goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator


class _HasClose(Protocol):
    async def close(self) -> None:
        """Release it."""


Closes = TypeVar("Closes", bound=_HasClose)


class Closing(ABC):
    """Base of what closes at the end of a `with`; subclasses implement `close`."""

    @abstractmethod
    def close(self) -> None:
        """Release what the object owns; idempotent."""

    def __enter__(self) -> Self:
        """Enter a context manager that closes the object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the object."""
        self.close()


class AsyncClosing(ABC):
    """Base of what closes at the end of an `async with`; subclasses implement `aclose`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release what the object owns; idempotent."""

    async def __aenter__(self) -> Self:
        """Enter a context manager that closes the object."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the object."""
        await self.aclose()


class AsyncConnecting(AsyncClosing):
    """Base of connections: one that is left by an error is broken off instead."""

    @abstractmethod
    def abort(self) -> None:
        """Break the connection off."""

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        """Close the connection; after an error, abort it."""
        if kind is None:
            await self.aclose()
        else:
            self.abort()


class Opening(Generic[Closes]):
    """What `AsyncSandbox.create` returns: await it, or enter it."""

    def __init__(self, make: Callable[[], Awaitable[Closes]]) -> None:
        self._make = make
        self._made: Closes | None = None

    def __await__(self) -> Generator[object, None, Closes]:
        """Create the sandbox; its owner closes it."""
        return self._make().__await__()

    async def __aenter__(self) -> Closes:
        """Create the sandbox."""
        self._made = await self._make()
        return self._made

    async def __aexit__(self, *_: object) -> None:
        """Close the sandbox."""
        if self._made is not None:
            await self._made.close()
