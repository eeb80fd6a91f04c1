"""The door for clients of E2B: all planes on one origin, told apart by the path.

The control plane is in `control`, the daemon's routes in `daemon`, the interpreter's in
`interpreter`; this module mounts them. A request for another port of a sandbox goes to the server
inside, whatever its path. The invariant: a handler of a sandbox's plane runs only with the seat
that the caller's token or key opens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.door import PublicRoute, Route
from cellwall.apps.doors.e2b import answers
from cellwall.apps.doors.e2b.building.routes import Building
from cellwall.apps.doors.e2b.control.copies import Copies
from cellwall.apps.doors.e2b.control.creating import Creating
from cellwall.apps.doors.e2b.control.lives import Lives
from cellwall.apps.doors.e2b.control.templates import Templates, absent_routes
from cellwall.apps.doors.e2b.daemon.service import Daemon
from cellwall.apps.doors.e2b.deadlines import Deadlines
from cellwall.apps.doors.e2b.front import traffic
from cellwall.apps.doors.e2b.front.callers import INSIDE, SANDBOX_HEALTH, Callers
from cellwall.apps.doors.e2b.house import House
from cellwall.apps.doors.e2b.interpreter.service import Interpreter
from cellwall.apps.doors.e2b.seat import Seat, seated

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Visit
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Request
    from cellwall.server.http.face import Find
    from cellwall.server.state import State

Handler = Callable[["Visit"], Awaitable[None]]


def make_door(state: State, options: Mapping[str, Any]) -> E2B:
    """Return the door."""
    return E2B(state, options)


class E2B:
    """The door; see the module."""

    def __init__(self, state: State, options: Mapping[str, Any]) -> None:
        """Raises `UsageError` for options that it does not have."""
        house = House(state, options)
        self._callers = Callers(house)
        self._deadlines = Deadlines(state)
        creating = Creating(house)
        self._building = Building(house)
        self.control: tuple[Route, ...] = (
            *self._building.routes,
            *Templates(house).routes,
            *Lives(house, creating).routes,
            *creating.routes,
            *absent_routes(),
            *Copies(house, creating).routes,
        )
        self._daemon = Daemon()
        below = (*self._daemon.routes(), *Interpreter().routes())
        self.routes: tuple[Route | PublicRoute, ...] = (
            PublicRoute("GET", "/health", health),
            Route("GET", SANDBOX_HEALTH, traffic.health),
            Route("*", INSIDE, traffic.forward),
            *self.control,
            *(Route(method, path, _with_seat(handler)) for method, path, handler in below),
        )

    def principal(self, request: Request, find: Find) -> Principal | None:
        """Return who asks."""
        # Clients whose base ends in a slash send two.
        path = request.scope["path"] = "/" + request.scope["path"].lstrip("/")
        return self._callers.of(request, path, find)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error in E2B's shape."""
        await answers.refuse(request, error)

    async def aclose(self) -> None:
        """Stop looking for sandboxes to pause, and end what clients have left open."""
        await self._building.aclose()
        await self._deadlines.aclose()
        await self._daemon.aclose()


def _with_seat(handler: Callable[[Seat], Awaitable[None]]) -> Handler:
    async def handle(visit: Visit) -> None:
        await handler(await seated(visit))

    return handle


async def health(request: Request) -> None:
    """`GET /health` of the server itself."""
    await answers.empty(request)
