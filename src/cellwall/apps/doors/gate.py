"""Gate: sends a connection to the door whose prefix or port it came for, or to our own protocol.

Made by `apps.serve` if the operator opens a door. Each door has guards of its own, which check
Host, Origin and key as everywhere; only the shapes are its protocol's. The invariant: a request
without a key runs as a tenant only where the operator named one, on a server for this machine
alone.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from cellwall.apps.doors.door import PublicRoute, Route, Visit
from cellwall.apps.doors.registry import maker_of
from cellwall.apps.inner.clients import Clients
from cellwall.model.errors import UsageError
from cellwall.server.auth.keys import KeyRecord, digest_of
from cellwall.server.core.errors import HttpError
from cellwall.server.http.guards import Guard
from cellwall.server.http.path_table import PathTable

if TYPE_CHECKING:
    from cellwall.apps.doors.door import Door
    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Message, Receive, Request, Send
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.http.face import Face, Find
    from cellwall.server.state import State


def check_doors(settings: ServerSettings) -> None:
    """Refuse unknown doors, ports given twice, and service to other machines without a key."""
    _check_ports(settings)
    for name, door in settings.doors.items():
        maker_of(name)
        if door.tenant is None:
            continue
        if not settings.is_local or settings.proxies:
            where = "a proxy in front" if settings.is_local else settings.host
            raise UsageError(
                f"serve: door {name} serves requests without a key, and {where} can be reached by "
                "other machines",
                remedy=f"take tenant out of [doors.{name}], or listen on 127.0.0.1 without proxies",
            )
        if "*" in settings.allowed_hosts:
            # SECURITY: any page could have its own name lead to this machine, and be answered.
            raise UsageError(
                f"serve: door {name} serves requests without a key, and allowed_hosts has every "
                "name, also that of a page in this machine's browser",
                remedy=f"take tenant out of [doors.{name}], or name the hosts in allowed_hosts",
            )


def _check_ports(settings: ServerSettings) -> None:
    """Refuse a port that two listeners have: binding both works, as long as neither listens."""
    taken = {} if settings.unix is not None else {settings.port: "the server"}
    for name, door in settings.doors.items():
        if not door.port:
            continue
        if door.port in taken:
            raise UsageError(
                f"serve: door {name} and {taken[door.port]} have the same port {door.port}",
                remedy=f"give another port in [doors.{name}]",
            )
        taken[door.port] = f"door {name}"


class Gate:
    """The application of a server with doors; see the module."""

    def __init__(self, state: State, own: Guard, said: Face | None = None) -> None:
        """`own` is the application of our own protocol, to which doors send their requests.

        `said`: what a gateway in front says of its callers; None: callers come themselves.
        """
        self._own = own
        self._is_behind = said is not None
        self._clients = Clients(own, state.keys)
        self._doors: list[Door] = []
        self._by_name: dict[str, Guard] = {}
        self._by_port: dict[int, Guard] = {}
        for name, settings in state.settings.doors.items():
            door = maker_of(name)(state, settings.options)
            self._doors.append(door)
            router = _Router(door, self._clients, name)
            face = _DoorFace(door, router, _stand_in(state, settings.tenant), said)
            self._by_name[name] = Guard(state, router, face)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if self._is_behind:
            door = _said(scope, b"cellwall-door")
            scope, guard = _as_said(scope), self._by_name.get(door)
            if door and guard is None:  # open at the gateway alone: nothing of ours is meant
                scope = {**scope, "path": f"/{door}", "raw_path": f"/{door}".encode()}
        else:
            server = scope.get("server")
            guard = None if server is None else self._by_port.get(server[1])
        if guard is None:
            first, _, rest = scope["path"][1:].partition("/")
            guard = self._by_name.get(first)
            if guard is not None:
                scope = {**scope, "path": f"/{rest}", "root_path": f"/{first}"}
        await (guard or self._own)(scope, receive, send)

    def listens(self, name: str, port: int) -> None:
        """Serve the door called `name` without its prefix to connections that came to `port`."""
        self._by_port[port] = self._by_name[name]

    async def aclose(self) -> None:
        """Close every door; idempotent."""
        for door in self._doors:
            await door.aclose()
        await self._clients.aclose()


def _said(scope: Message, name: bytes) -> str:
    """Return what a gateway says under a name; empty: nothing."""
    found = next((value for key, value in scope["headers"] if key == name), b"")
    return str(found.decode("latin-1"))


def _as_said(scope: Message) -> Message:
    """Return a connection as the gateway's client made it: by which scheme, and from where."""
    scheme, peer = _said(scope, b"cellwall-scheme"), _said(scope, b"cellwall-peer")
    if not scheme:
        return scope
    if scope["type"] == "websocket":
        scheme = "wss" if scheme == "https" else "ws"
    return {**scope, "scheme": scheme, "client": (peer, 0) if peer else None}


def _stand_in(state: State, tenant: str | None) -> Principal | None:
    """Return the caller for requests without a key: its key exists, and is known to no one."""
    if tenant is None:
        return None
    key = secrets.token_urlsafe(33)
    state.keys.add(KeyRecord(digest_of(key), tenant))
    return state.keys.find(key)


class _DoorFace:
    """The face of a door: public routes need no key, and a tenant may be that of a missing one.

    Behind a gateway, which checks keys and leaves a word in the place of each, any key is that of
    the caller whom it names.
    """

    def __init__(
        self, door: Door, router: _Router, stand_in: Principal | None, said: Face | None
    ) -> None:
        self._door = door
        self._router = router
        self._stand_in = stand_in
        self._said = said
        self.has_checked_hosts = said is not None
        self.refuse = door.refuse

    def principal(self, request: Request, find: Find) -> Principal | None:
        tried, stand_in = False, self._stand_in
        if self._said is not None:
            stand_in = self._said.principal(request, find)

        def finding(key: str) -> Principal | None:
            nonlocal tried
            tried = True
            return find(key) if self._said is None else stand_in

        found = self._door.principal(request, finding)
        # A wrong key is refused: its sender believes to be another tenant.
        return stand_in if found is None and not tried else found

    def is_open(self, request: Request) -> bool:
        return self._router.is_public(request)


class _Router:
    """Serves what a door has for a path and method."""

    def __init__(self, door: Door, clients: Clients, name: str) -> None:
        self._clients = clients
        self._name = name
        routes = ((each.path, each.method, each) for each in door.routes)
        self._table: PathTable[Route | PublicRoute] = PathTable(routes, "see docs/doors.md")

    def is_public(self, request: Request) -> bool:
        try:
            return isinstance(self._table.find(request), PublicRoute)
        except HttpError:
            return False

    async def __call__(self, request: Request) -> None:
        route = self._table.find(request)
        request.route = f"/{self._name}{route.path}"
        if isinstance(route, PublicRoute):
            await route.handler(request)
        else:
            await route.handler(Visit(request, await self._clients.of(request.caller)))
