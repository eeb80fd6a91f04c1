"""First checks of every request: strict headers, Host, Origin, key; and its errors at the end.

They are plain ASGI around the application, for HTTP and WebSockets alike, and are called before any
body is read. The ownership of objects is checked by `ownership`; how a protocol presents a key and
shows an error is its `face`. The invariant: no handler runs for a caller without a key, unless the
face says that the path is public or that its handler checks a token of this server.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from cellwall.model.errors import FileError
from cellwall.model.ids import new_id
from cellwall.server.auth.keys import spellings
from cellwall.server.auth.tokens import TokenRefused
from cellwall.server.core.error_log import drop_traceback, log_failure
from cellwall.server.core.errors import HttpError, status_of
from cellwall.server.core.request import ClientGone, Request, refused_key
from cellwall.server.core.request_context import ORIGIN
from cellwall.server.core.settings import LOOPBACK
from cellwall.server.http import cross_origin
from cellwall.server.http.face import OwnFace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cellwall.server.auth.keys import Principal
    from cellwall.server.core.request import Message, Receive, Send
    from cellwall.server.core.settings import ServerSettings
    from cellwall.server.http.face import Face
    from cellwall.server.state import State

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ONCE = frozenset(
    {b"host", b"content-length", b"content-type", b"transfer-encoding", b"authorization",
     b"x-api-key", b"idempotency-key", b"range", b"x-request-id"}
)  # fmt: skip
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_MOST_HEADERS = 100


class Guard:
    """The outermost application."""

    def __init__(
        self, state: State, app: Callable[[Request], Awaitable[None]], face: Face | None = None
    ) -> None:
        """`app` answers a request of the protocol of `face`, or raises; by default, our own."""
        self._state = state
        self._app = app
        self._face = face or OwnFace(state.tokens)
        self._hosts = allowed_hosts(state.settings)
        self._origins = cross_origin.listed(state.settings.allowed_origins)
        self._seen_keys: set[str] = set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] not in {"http", "websocket"}:
            raise RuntimeError(f"asgi: {scope['type']} is not served")
        headers, fault = read_headers(scope["headers"])
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = new_id()
        origin = headers.get("origin", "")
        if origin in self._origins:
            send = cross_origin.telling(origin, send)
        request = Request(scope, receive, send, headers, request_id, None)
        # A page that is not listed is answered like any other request of its kind.
        is_preflight = origin in self._origins and cross_origin.is_preflight(scope, headers)
        began = time.perf_counter()

        def check() -> None:
            if fault is not None:
                raise fault
            if not self._face.has_checked_hosts:
                self._check_host(request)
            if not is_preflight:
                self._check_key(request)

        app = cross_origin.answer_preflight if is_preflight else self._app
        try:
            await self._serve(request, app, check, self._state.connections.begun)
        finally:
            seconds = time.perf_counter() - began
            request.execution_id = request.execution_id or request.origin.execution_id
            self._state.requests += 1
            self._state.observer.request(request, seconds)

    async def inside(
        self,
        caller: Principal,
        headers: Mapping[str, str],
        scope: Message,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve a request that this process makes for a caller, whose key was checked before.

        Its effects are checked, counted and audited as those of any other request; it is logged
        with the request it comes from, and has that request's id.
        """
        outer = ORIGIN.get()
        request_id = new_id() if outer is None else outer.request_id

        request = Request(scope, receive, send, headers, request_id, caller)
        began = time.perf_counter()
        try:
            await self._serve(request, self._app, _nothing, self._state.connections.begun_inside)
        finally:
            if outer is not None and request.execution_id is not None:
                outer.execution_id = request.execution_id
            self._state.observer.inside(request, time.perf_counter() - began)

    async def _serve(
        self,
        request: Request,
        app: Callable[[Request], Awaitable[None]],
        check: Callable[[], None],
        count: Callable[[Request], None],
    ) -> None:
        request.state = state = self._state
        ORIGIN.set(request.origin)
        if state.observer.tracing is not None:
            state.observer.tracing.begin(request)
        try:
            check()
            if request.principal is not None:
                request.origin.tenant = request.principal.tenant
            count(request)
            await app(request)
        except ClientGone:
            await asyncio.sleep(0)  # lets uvicorn see that the connection is gone
        except Exception as error:  # noqa: BLE001 - whatever it is becomes an answer
            try:
                await self._answer_error(request, error)
            finally:
                drop_traceback(error)
        finally:
            request.close()
            state.connections.ended(request)

    async def _answer_error(self, request: Request, error: Exception) -> None:
        status = status_of(error)
        if status < 500 or status in {503, 507}:
            _note_refusal(request, status, error)
        log_failure(error, request.request_id)
        if request.has_answered and request.scope["type"] == "websocket":
            await request.send({"type": "websocket.close", "code": 1011, "reason": "it failed"})
            return
        if request.has_answered:
            request.abort()  # the only way to tell the client that the answer is incomplete
            return
        # Before the rest of a refused body is read, which may take a while.
        drop_traceback(error)
        await self._face.refuse(request, error)

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if not answers_to(self._hosts, name_of_host(host)):
            raise HttpError(
                403,
                "host_refused",
                "host: this server does not answer to that name",
                remedy="use its own address, or let the operator add the name to allowed_hosts",
                headers={"connection": "close"},
            )
        origin = request.headers.get("origin")
        if origin is None or origin in self._origins:
            return
        scheme = {"ws": "http", "wss": "https"}.get(
            request.scope["scheme"], request.scope["scheme"]
        )
        if origin != f"{scheme}://{host}":
            raise HttpError(
                403,
                "origin_refused",
                "origin: pages from there may not call this server",
                remedy="let the operator add it to allowed_origins",
                headers={"connection": "close"},
            )

    def _check_key(self, request: Request) -> None:
        request.principal = self._face.principal(request, self._find)
        if request.principal is not None or self._face.is_open(request):
            return
        client = request.scope.get("client")
        refusal = refused_key(self._state.failures.wait_s(client[0] if client else "unix"))
        # The body is not read, so the connection cannot be used again.
        refusal.headers["connection"] = "close"
        raise refusal

    def _find(self, presented: str) -> Principal | None:
        found = self._state.keys.find(presented)
        if found is not None and found.key_id not in self._seen_keys:
            self._seen_keys.add(found.key_id)
            for each in spellings(presented):
                self._state.observer.redactor.learn_ours(each, "keys")
        return found


def _nothing() -> None:
    return


def read_headers(raw: list[tuple[bytes, bytes]]) -> tuple[dict[str, str], HttpError | None]:
    """Return headers by name, and the refusal if they are not acceptable."""
    headers: dict[str, str] = {}
    fault = "more than 100 of them" if len(raw) > _MOST_HEADERS else ""
    for name, value in raw:
        if name in _ONCE and name.decode("latin-1") in headers:
            fault = f"{name.decode()} comes twice"
        headers[name.decode("latin-1")] = value.decode("latin-1")
    if "transfer-encoding" in headers:
        if "content-length" in headers:
            fault = "both content-length and transfer-encoding"
        elif headers["transfer-encoding"].lower() != "chunked":
            fault = "an unknown transfer-encoding"
    length = headers.get("content-length")
    if length is not None and not (length.isascii() and length.isdecimal() and len(length) < 19):
        fault = "content-length is not a number"
    if not fault:
        return headers, None
    refusal = HttpError(
        400,
        "usage",
        f"headers: {fault}",
        remedy="send each header once",
        headers={"connection": "close"},
    )
    return headers, refusal


def allowed_hosts(settings: ServerSettings) -> frozenset[str]:
    """Return the names the server answers to, lower case, without port."""
    if settings.unix is not None:
        return names_of("localhost", settings.allowed_hosts)
    return names_of(settings.host, settings.allowed_hosts)


def names_of(host: str, allowed: tuple[str, ...]) -> frozenset[str]:
    """Return the names a listener at `host` answers to: its own, loopback's there, `allowed`."""
    names = [*allowed, f"[{host}]" if ":" in host else host]
    if host in LOOPBACK:
        names += _LOOPBACK_NAMES
    return frozenset(name.lower() for name in names)


def answers_to(names: frozenset[str], name: str) -> bool:
    """Report whether a name of a host is one of `names`; `*.` there is any one label."""
    return name in names or "*" in names or "*." + name.partition(".")[2] in names


def name_of_host(host: str) -> str:
    """Return a Host header without its port."""
    name, colon, port = host.rpartition(":")
    is_port = colon and port.isascii() and port.isdecimal() and not name.endswith(":")
    return (name if is_port else host).lower()


def _note_refusal(request: Request, status: int, error: Exception) -> None:
    state, code = request.state, str(getattr(error, "code", "internal"))
    state.observer.refused(request, status, code)
    is_access = status in {401, 403, 429} and not isinstance(error, FileError)
    is_access = is_access or isinstance(error, TokenRefused)
    if state.audit is not None and (is_access or getattr(error, "is_of_other", False)):
        state.audit.refused(request, status, code)
