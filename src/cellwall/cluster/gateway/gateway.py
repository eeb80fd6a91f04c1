"""The gateway: what a request has to pass before it goes to a node, and what is answered here.

Made by `apps` with the listener. The order of the checks is that of a server's (`http.guards`):
headers, host and origin, key. The invariant: nothing goes to a node for a caller without a key,
unless a token of that node's stands for one there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import cellwall
from cellwall.cluster.gateway.batch import Batch
from cellwall.cluster.gateway.callers import caller_of, check_token
from cellwall.cluster.gateway.door_lists import array
from cellwall.cluster.gateway.exchange import Exchange
from cellwall.cluster.gateway.lists import listed
from cellwall.cluster.gateway.replays import Replays
from cellwall.cluster.gateway.routing import Way, way_of
from cellwall.cluster.gateway.tenants.asked import Asked, check_scope
from cellwall.cluster.gateway.wire.heads import ResponseHead, Shaped, framing_for, response_bytes
from cellwall.cluster.gateway.wire.listing import Listing
from cellwall.cluster.gateway.work.orders import order
from cellwall.cluster.gateway.work.outliers import judge
from cellwall.cluster.gateway.work.turns import Turns
from cellwall.model.errors import CellwallError
from cellwall.model.ids import GATEWAYS, new_id
from cellwall.server.auth.keys import Failures
from cellwall.server.core.body_budget import BodyBudget, most_bytes
from cellwall.server.core.error_log import log_failure
from cellwall.server.core.errors import HttpError, envelope, headers_of, status_of
from cellwall.server.http.cross_origin import listed as listed_origins
from cellwall.server.http.cross_origin import permission
from cellwall.server.http.face import PUBLIC
from cellwall.server.http.guards import allowed_hosts, answers_to, name_of_host
from cellwall.surface.shared.tasks import Tasks
from cellwall.wire.answer import one_line

if TYPE_CHECKING:
    from cellwall.cluster.gateway.agreed.claims import AgreedReplays
    from cellwall.cluster.gateway.agreed.quotas import Quotas
    from cellwall.cluster.gateway.agreed.running import Running
    from cellwall.cluster.gateway.background.background import Background
    from cellwall.cluster.gateway.book import Book
    from cellwall.cluster.gateway.callers import Caller
    from cellwall.cluster.gateway.data.data import Data
    from cellwall.cluster.gateway.doors.opened import Opened
    from cellwall.cluster.gateway.tenants.lending import Keeps
    from cellwall.cluster.gateway.wire.front import ClientLink, Served
    from cellwall.cluster.gateway.wire.heads import Headers, RequestHead
    from cellwall.cluster.gateway.work.tally import Tally
    from cellwall.cluster.gateway.work.trail import Trail
    from cellwall.server.auth.keys import KeyRing
    from cellwall.server.core.settings import ServerSettings

_log = logging.getLogger("cellwall.gateway")
_NOTHING: Mapping[str, str] = {}
_NO_DOORS: Mapping[str, Opened] = {}
_NODES = "/nodes"
_OF_SEVERAL = frozenset({"all", "batch", "data"})
_PLAIN = (b"cellwall-scheme", b"http")
_JUDGE_S = 0.5
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gateway:
    """See the module."""

    def __init__(
        self,
        settings: ServerSettings,
        keys: KeyRing,
        book: Book,
        doors: Mapping[str, Opened] = _NO_DOORS,
        gateways: int = 1,
    ) -> None:
        """`settings`: those of a server that say who may call, and how; `doors`: by name.

        `gateways`: how many share the nodes.
        """
        self.book = book
        self.turns = Turns(settings.tiers, settings.tenants, settings.most_queued, gateways)
        book.on_change = lambda: self.turns.resize(book.nodes)
        self.tasks = Tasks()
        self._settings = settings
        self.keyring = keys
        self._failures = Failures()
        self.replays: Replays | AgreedReplays = Replays()
        self.quotas: Quotas | None = None
        """What is counted over nodes; None: each node holds a tenant's quotas for itself."""
        self.running: Running | None = None
        """The same for programs under way."""
        self.data: Data | None = None
        """What answers for volumes, images and templates; None: nothing does."""
        self.keeps: Keeps | None = None
        """Keys and secrets that all gateways keep; None: there is no directory for them."""
        self.background: Background | None = None
        """Programs in the background and webhooks; None: a node has those that come to it."""
        self.clients: set[ClientLink] = set()
        """The connections of clients."""
        self._doors = doors
        self.bodies = BodyBudget(most_bytes(settings))
        """What is held of bodies: of those that another node may need, and of batches."""
        self._hosts = allowed_hosts(settings)
        self._pages = {each.encode() for each in listed_origins(settings.allowed_origins)}
        self.alive_s = settings.alive_s
        self.requests = 0
        self.tally: Tally | None = None
        """The gateway's metrics; None: it keeps none."""
        self.trail: Trail | None = None
        """The gateway's audit; None: it keeps none."""

    # -- beginning -------------------------------------------------------------------------

    def begin(self, client: ClientLink, head: RequestHead, fault: HttpError | None) -> Served:
        """Begin the way of one request."""
        self.requests += 1
        self._know_page(head)
        path = head.path
        name = self._door_of(path)
        if name:
            return self._at_door(name, client, head, fault, len(name) + 1)
        way = way_of(head.method.decode("latin-1"), path, head.first(b"mcp-session-id"))
        head.kind = way.kind
        caller: Caller | None = None
        try:
            if fault is not None:
                raise fault
            self._check_host(head)
            if head.is_preflight:
                return self._permitted(client, head)
            caller = self._caller(client, head, way, path)
            _check_way(way, path, caller)
        except CellwallError as error:
            return self._refused(client, head, error, caller)
        return self._served(client, head, way, caller)

    def _served(
        self, client: ClientLink, head: RequestHead, way: Way, caller: Caller | None
    ) -> Served:
        """Return what answers a request that may be."""
        if way.kind == "own" and way.thing and caller is not None:
            return Asked(self, client, head, way, caller)
        if way.kind == "own":
            if head.path.startswith(f"{_NODES}/"):
                return Listing(self.tasks.spawn(order(self, client, head, caller)))
            return self._own(client, head, head.path)
        if self.background is not None and way.node == GATEWAYS and caller is not None:
            return self.background.begin(client, head, way, caller)
        if way.kind in _OF_SEVERAL and caller is not None:
            return self._of_several(client, head, way, caller)
        exchange = Exchange(self, client, head, way, caller)
        self.tasks.spawn(exchange.run())
        return exchange

    def _of_several(
        self, client: ClientLink, head: RequestHead, way: Way, caller: Caller
    ) -> Served:
        """Return what answers a request for which several nodes may be asked."""
        if way.kind == "data" and self.data is not None:
            return self.data.begin(client, head, way, caller)
        if way.kind == "batch":
            return Batch(self, client, head, caller).begin()
        return Listing(self.tasks.spawn(self._list(client, head, way, caller)))

    def _door_of(self, path: str) -> str:
        """Return the name of the door at which a path is; empty: at none."""
        if not self._doors:
            return ""
        name = path[1:].partition("/")[0]
        return name if name in self._doors else ""

    def begin_at(
        self, name: str, client: ClientLink, head: RequestHead, fault: HttpError | None
    ) -> Served:
        """Begin the way of a request that came to a door's own port."""
        self.requests += 1
        self._know_page(head)
        return self._at_door(name, client, head, fault, 0)

    def _know_page(self, head: RequestHead) -> None:
        origin = head.named.get(b"origin", b"")
        if origin in self._pages:
            head.page = origin

    def _at_door(
        self, name: str, client: ClientLink, head: RequestHead, fault: HttpError | None, prefix: int
    ) -> Served:
        """Begin the way of a request of a foreign protocol; `prefix`: length of the door's path."""
        door, settings = self._doors[name], self._settings
        head.kind = "door"
        head.door, head.door_path = name, head.path[prefix:]
        try:
            if fault is not None:
                raise fault
            self._check_host(head)
            if head.is_preflight:
                return self._permitted(client, head)
            way = self._way_at(door, head, prefix)
            scheme = b"https" if settings.is_tls else b"http"
            caller = door.caller(
                head, client.peer, scheme, self.keyring, settings.tenants, self._failures
            )
        except CellwallError as error:
            return self._refused(client, head, error, None)
        if not prefix:
            caller.said.append((b"cellwall-door", name.encode()))
        return self._served(client, head, way, caller)

    def _way_at(self, door: Opened, head: RequestHead, prefix: int) -> Way:
        """Return where a request of a foreign protocol goes. Raises HttpError."""
        target = head.target.decode("latin-1")[prefix:]
        way = door.way_of(head.method.decode("latin-1"), target, head.named)
        is_split = way.kind == "all" and self.book.has_several
        if way.kind == "refused" or (is_split and not way.path):
            raise _nothing_there()
        if way.kind == "template" and not self.book.has_several:
            return Way("any", makes=way.makes)
        is_nowhere = way.kind == "object" and not self.book.has_had(way.node)
        if is_nowhere or (way.kind == "all" and not is_split):
            return Way("any")  # which answers in the protocol's shape, also that there is none
        return way

    async def _list(self, client: ClientLink, head: RequestHead, way: Way, caller: Caller) -> None:
        """Answer with a list over all nodes."""
        request_id = self.request_id_of(head)
        try:
            said = [*caller.said, (b"x-request-id", request_id.encode())]
            make = array if way.thing == "array" else listed
            found = await make(self.book, way.path, head.target, said)
            self.answer(client, head, found.status, found.value, request_id, found.more)
        except Exception as error:  # noqa: BLE001 - a defect has to be an answer, too
            self.refuse(client, head, error, request_id)
        client.done()

    def place(self, tenant: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold a place among a tenant's programs under way for the length of a block."""
        return contextlib.nullcontext() if self.running is None else self.running.place(tenant)

    async def watch_paces(self) -> None:
        """Judge for ever which nodes are slow."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_JUDGE_S)
            judge(self.book.nodes, loop.time())

    def request_id_of(self, head: RequestHead) -> str:
        """Return the id of a request: the client's, if it has the form of one."""
        given = head.first(b"x-request-id")
        return given if _REQUEST_ID.fullmatch(given) else new_id()

    def _caller(self, client: ClientLink, head: RequestHead, way: Way, path: str) -> Caller | None:
        if path in PUBLIC or check_token(head, way, self.keyring):
            return None
        made = caller_of(head, client.peer, self.keyring, self._settings.tenants, self._failures)
        if not self._settings.is_tls:  # nodes sign addresses for the client
            made.said.append(_PLAIN)
        return made

    # -- keys that are accepted no longer --------------------------------------------------

    def cut(self) -> None:
        """Cut the requests under way whose key is accepted no longer, as if their client left."""
        gone = [client for client in self.clients if not self._may_go_on(client)]
        for client in gone:
            client.abort()
        if gone:
            _log.warning("cut %d requests: their keys are no longer accepted", len(gone))

    def _may_go_on(self, client: ClientLink) -> bool:
        """Report whether the request on a connection, if there is one, would still be let in."""
        head = client.head
        if head is None or head.has_begun:
            return True
        if head.door:
            return self._doors[head.door].has_accepted(head, self.keyring)
        way = way_of(head.method.decode("latin-1"), head.path, head.first(b"mcp-session-id"))
        try:
            if head.path not in PUBLIC and not check_token(head, way, self.keyring):
                caller_of(head, client.peer, self.keyring, self._settings.tenants, Failures())
        except CellwallError:
            return False
        return True

    def _check_host(self, head: RequestHead) -> None:
        host = head.first(b"host")
        if not answers_to(self._hosts, name_of_host(host)):
            raise HttpError(
                403,
                "host_refused",
                "host: this gateway does not answer to that name",
                remedy="use its own address, or let the operator add the name to allowed_hosts",
            )
        origin = head.named.get(b"origin")
        if origin is None or head.page:
            return
        scheme = "https" if self._settings.is_tls else "http"
        if origin.decode("latin-1") != f"{scheme}://{host}":
            raise HttpError(
                403,
                "origin_refused",
                "origin: pages from there may not call this gateway",
                remedy="let the operator add it to allowed_origins",
            )

    def counted(self, head: RequestHead, status: int) -> None:
        """Count an answer, if there are metrics."""
        if self.tally is not None:
            self.tally.answered(head.kind, status)

    # -- answering here --------------------------------------------------------------------

    def _own(self, client: ClientLink, head: RequestHead, path: str) -> Served:
        value: dict[str, Any]
        if path == "/health":
            value = {"status": "ok", "version": cellwall.__version__}
        else:
            value = {"nodes": self.book.shown(), "queued": self.turns.queued}
        request_id = self.request_id_of(head)
        return _Answered(client, head, lambda: self.answer(client, head, 200, value, request_id))

    def _permitted(self, client: ClientLink, head: RequestHead) -> Served:
        """Permit the request that a listed page is about to send: it will be checked then."""
        fields = permission(head.first(b"access-control-request-headers"))
        found, request_id = Shaped(200, b"", "text/plain", fields), self.request_id_of(head)
        return _Answered(client, head, lambda: self.give(client, head, found, request_id))

    def _refused(
        self, client: ClientLink, head: RequestHead, error: CellwallError, caller: Caller | None
    ) -> Served:
        """Refuse a request; its body is not read, so its connection has no other."""
        request_id = self.request_id_of(head)
        if self.tally is not None:
            self.tally.refused(error)
        if self.trail is not None:
            self.trail.refused(caller, client.peer, error, request_id)
        if head.length != 0:
            client.is_closing = True
        return _Answered(client, head, lambda: self.refuse(client, head, error, request_id))

    def refuse(
        self, client: ClientLink, head: RequestHead, error: Exception, request_id: str
    ) -> None:
        """Answer with the error envelope, or as the door does at which the request came."""
        log_failure(error, request_id)
        if head.door:
            shaped = self._doors[head.door].shaped(error, head.door_path, head.named)
            self.give(client, head, shaped, request_id)
            return
        body = envelope(error, request_id)
        status, more = status_of(error), headers_of(error)
        self.answer(client, head, status, body, request_id, more)

    def answer(
        self,
        client: ClientLink,
        head: RequestHead,
        status: int,
        value: Mapping[str, Any] | list[Any],
        request_id: str,
        more: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Answer with JSON."""
        data = one_line(value).encode()
        self.give(client, head, Shaped(status, data, "application/json", more), request_id)

    def give(self, client: ClientLink, head: RequestHead, shaped: Shaped, request_id: str) -> None:
        """Answer with a body as it is."""
        status, data, media_type, more = shaped
        self.counted(head, status)
        headers: Headers = [(b"content-type", media_type.encode())]
        headers.append((b"x-request-id", request_id.encode()))
        headers += [
            (name.encode(), text.encode()) for name, text in more.items() if name != "connection"
        ]
        framing = framing_for(len(data), has_chunks=True)
        made = ResponseHead(status, headers, len(data))
        if not client.is_kept:
            client.is_closing = True
        first = response_bytes(made, is_kept=client.is_kept, framing=framing, page=head.page)
        client.write(first if head.method == b"HEAD" else first + data)


def _check_way(way: Way, path: str, caller: Caller | None) -> None:
    """Refuse what is the operator's alone, and what a gateway has not. Raises HttpError."""
    is_operators = path == _NODES or path.startswith(f"{_NODES}/")
    if is_operators and (caller is None or not caller.principal.may("admin")):
        raise HttpError(403, "forbidden", "key: admin is needed for that", remedy="use another key")
    check_scope(way, caller)
    if way.kind == "refused":
        raise _nothing_there()


def _nothing_there() -> HttpError:
    return HttpError(404, "not_found", "path: a gateway has nothing there", remedy="see /docs")


class _Answered:
    """A request that is answered here; its body is not looked at."""

    def __init__(self, client: ClientLink, head: RequestHead, answer: Callable[[], None]) -> None:
        self._client = client
        self._answer = answer
        self._is_over = False
        if head.length == 0 or client.is_closing:
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._answer()
            self._client.done()

    def on_body(self, data: bytes) -> None:
        """Leave it."""

    def on_whole(self) -> None:
        """Answer, if that was not done before."""
        self._give()

    def on_room(self) -> None:
        """Nothing waits for it."""

    def on_full(self) -> None:
        """Nothing more comes."""

    def on_gone(self) -> None:
        """Answer nothing."""
        self._is_over = True
