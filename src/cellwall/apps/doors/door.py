"""What a door is: the routes of a foreign protocol, how its clients present a key and are refused.

`gate` serves doors; each package beside it is one. The invariant: a door reaches sandboxes only as
the caller, through `Visit.client` or `ownership.owned`, so that it can do nothing that the caller's
key may not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.client.asynchronous import AsyncClient
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find
    from cellwall.server.state import State


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a foreign client, after the guards' checks."""

    request: Request
    client: AsyncClient
    """The server as the caller sees it; the door does not close it."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path of a door, for callers with a key."""

    method: str
    """Upper case, or `WS`; `*` is every method of HTTP, and WebSockets too."""
    path: str
    """Pattern without the door's prefix: `/submissions/{token}`."""
    handler: Callable[[Visit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PublicRoute:
    """One method on one path of a door that needs no key: its health, its languages."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[None]]


class Door(Protocol):
    """One foreign protocol. It is also the `Face` that the guards ask."""

    @property
    def routes(self) -> Sequence[Route | PublicRoute]:
        """Every route; a request for any other path is refused as `NotFound`."""

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return who asks, by the way in which the protocol sends a key."""

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error in the protocol's shape, which any error of ours has to fit."""

    async def aclose(self) -> None:
        """Give back what the door holds; idempotent."""


MakeDoor = Callable[["State", "Mapping[str, Any]"], Door]
"""Function that makes a door from the options in its settings. Raises UsageError for wrong ones."""
