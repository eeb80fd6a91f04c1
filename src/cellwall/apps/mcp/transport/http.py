"""MCP over HTTP: `/mcp` of a server, streamable HTTP, one session for each client.

The server's guards have checked a request before it comes here: Host, Origin, key. A tool's work
goes through the server itself as requests of the caller (`inner`), so keys, tenants, quotas, limits
and audit are those of every other request. The invariants: a session belongs to its key alone and
does not exist for any other caller; and after its client has gone, its sandboxes are destroyed
within seconds.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from cellwall.apps.inner.transport import InnerTransport
from cellwall.apps.mcp.library import OnServer
from cellwall.apps.mcp.protocol import make_server
from cellwall.apps.mcp.session import Session
from cellwall.apps.mcp.tools.catalog import Catalog
from cellwall.apps.mcp.transport.calls import Calls
from cellwall.apps.mcp.transport.events import RETRY_MS, Events, Manager, Share, making
from cellwall.apps.mcp.transport.mount import PATH
from cellwall.apps.mcp.transport.posts import MESSAGE_BYTES, read_before, served_directly
from cellwall.apps.mcp.transport.visits import Visit, VisitingClient, Visits
from cellwall.client.asynchronous import AsyncClient
from cellwall.client.connection.address import Address
from cellwall.model.errors import NotFound
from cellwall.server.core.errors import HttpError
from cellwall.surface.shared.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.server.core.request import Message, Receive, Request, Send
    from cellwall.server.http.guards import Guard
    from cellwall.server.state import State

MOST_SESSIONS = 256
"""Maximum number of sessions of one tenant; each is a few objects, its sandboxes are counted
elsewhere."""
_TIMEOUT_S = 60.0


class Door:
    """The protocol's HTTP interface; see the module. Lives on the server's event loop."""

    def __init__(self, state: State, app: Guard) -> None:
        """Serve nothing before `open`; tools send their requests to `app`, the whole server."""
        self._app = app
        self._catalog = Catalog(state.engine.state_dir)
        self._tasks = Tasks()
        self._visits = Visits(self._end)
        server = make_server(self._catalog, self._session_of)
        self._server_info = server.server_info_stamp
        self._shares: dict[str, Share] = {}
        self._manager = Manager(
            server,
            session_idle_timeout=None,  # `visits` ends sessions and must know of each end
            max_sessions=None,
            retry_interval=RETRY_MS,
            max_request_body_size=MESSAGE_BYTES,
        )
        self._manager.node = state.engine.settings.node
        self._stopping = asyncio.Event()

    async def open(self) -> None:
        """Begin to serve."""
        ready = asyncio.Event()
        self._tasks.spawn(self._run(ready))
        await ready.wait()

    async def _run(self, ready: asyncio.Event) -> None:
        async with self._manager.run():
            ready.set()
            await self._stopping.wait()

    async def aclose(self) -> None:
        """End every session and stop; idempotent."""
        await self._visits.aclose()
        self._stopping.set()
        await self._tasks.wait_empty()

    # -- requests --------------------------------------------------------------------------

    async def handle(self, request: Request) -> None:
        """Serve one request of the protocol."""
        version = request.headers.get("mcp-protocol-version")
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await _refuse_version(request, version)
            return
        session_id = request.headers.get("mcp-session-id")
        if session_id is None:
            await self._begin(request)
            return
        visit = self._visits.find(session_id, _who(request))
        if visit is None:
            raise NotFound("mcp: this session does not exist", remedy="initialize again")
        visit.client.principal = request.caller
        with visit.connected() as connection:
            receive = await served_directly(request, visit, connection)
            if receive is not None:
                await self._manager.handle_request(
                    request.scope, connection.receiving(receive), connection.sending(request.send)
                )
        if request.scope["method"] == "DELETE":
            await self._visits.end(visit)

    async def _begin(self, request: Request) -> None:
        if self._visits.count(request.owner) >= MOST_SESSIONS:
            raise HttpError(
                429,
                "quota",
                f"mcp: there are {MOST_SESSIONS} sessions of yours",
                remedy="end some, or reuse one",
                headers={"retry-after": "5"},
            )
        receive = await read_before(request)
        client = self._client(request)
        made: Visit | None = None

        async def send(message: Message) -> None:
            nonlocal made
            if message["type"] == "http.response.start" and message["status"] < 400:
                session_id = _session_id(message)
                if session_id is not None:
                    made = self._visits.add(session_id, _who(request), client)
            await request.send(message)

        try:
            with making(client.events):
                await self._manager.handle_request(request.scope, receive, send)
        finally:
            if made is None:
                client.events.close()
                await client.session.close()

    def _client(self, request: Request) -> VisitingClient:
        async def serve(
            headers: Mapping[str, str], scope: Message, receive: Receive, send: Send
        ) -> None:
            await self._app.inside(client.principal, headers, scope, receive, send)

        address = Address("http://localhost")
        peer = request.scope.get("client")
        transport = InnerTransport(address, _TIMEOUT_S, serve, self._tasks, peer)
        library = OnServer(AsyncClient(address, _TIMEOUT_S, transport))
        session = Session(library, self._catalog)
        calls = Calls(session, self._server_info)
        events = Events(self._shares.setdefault(request.owner, Share()))
        client = VisitingClient(session, calls, events, request.caller)
        return client

    def _session_of(self, context: Any) -> Session:  # noqa: ANN401 - of the SDK
        session_id = context.request.headers.get("mcp-session-id", "")
        visit = self._visits.get(session_id)
        if visit is None:
            raise NotFound("mcp: this session has ended", remedy="connect again")
        return visit.client.session

    async def _end(self, visit: Visit) -> None:
        """Have the SDK end a session as if its client had requested that."""
        visit.client.events.close()
        scope: Message = {
            "type": "http",
            "method": "DELETE",
            "path": PATH,
            "query_string": b"",
            "headers": [(b"mcp-session-id", visit.session_id.encode()), (b"host", b"localhost")],
        }
        if not self._stopping.is_set():
            await self._manager.handle_request(scope, _nothing, _ignored)


def _who(request: Request) -> tuple[str, str]:
    return request.owner, request.caller.key_id


def _session_id(message: Message) -> str | None:
    for name, value in message.get("headers", ()):
        if name.lower() == b"mcp-session-id":
            return str(value.decode("latin-1"))
    return None


async def _refuse_version(request: Request, version: str) -> None:
    """Answer with the supported versions: those with sessions, because sandboxes belong to one."""
    body = await request.body(MESSAGE_BYTES)
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    request_id = asked.get("id") if isinstance(asked, dict) else None
    error = {
        "code": UNSUPPORTED_PROTOCOL_VERSION,
        "message": f"protocol version {version[:40]!r} is not served over HTTP",
        "data": {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version[:40]},
    }
    await request.answer({"jsonrpc": "2.0", "id": request_id, "error": error}, 400)


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _ignored(_: Message) -> None:
    return
