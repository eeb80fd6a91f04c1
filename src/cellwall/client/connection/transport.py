"""One server's HTTP: pooled connections, retries, errors as exceptions, WebSockets.

Not what is asked (the parts of the SDK). Lives on one event loop. The invariant: a request is
sent again only where a second one cannot do anything twice: it is idempotent, it carries a key
the server knows it by, or no connection was made.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx

from cellwall.client.connection.retry import Budget, unreachable
from cellwall.model.errors import CellwallError, NotFound, ServerUnreachable, UsageError
from cellwall.surface.shared.tasks import Tasks
from cellwall.wire.asking import encoded
from cellwall.wire.reading import error_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from cellwall.client.connection.address import Address

NDJSON = "application/x-ndjson"
_CONNECT_S = 10.0
_LIMITS = httpx.Limits(max_connections=512, max_keepalive_connections=64, keepalive_expiry=30.0)
_IDEMPOTENT = frozenset({"GET", "PUT", "DELETE"})
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_CUT = (httpx.ReadError, httpx.RemoteProtocolError)
# Answers are awaited for as long as a program runs; that the server is gone shows by these.
_ALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """None as a value: left out."""
    body: Mapping[str, Any] | None = None
    """Sent as JSON."""
    content: bytes | Callable[[], AsyncIterator[bytes]] | None = None
    """Sent as it is; a callable is called again for another try."""
    media: str = "application/octet-stream"
    """Of `content`."""
    size: int | None = None
    """Bytes of `content`, if it comes in pieces and they are known."""
    accept: str | None = None
    key: str | None = None
    """Makes a POST repeatable."""
    is_held: bool = False
    """Its answer may take as long as a program runs."""
    is_repeatable: bool | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether a second one does no harm."""
        if self.is_repeatable is not None:
            return self.is_repeatable
        return self.key is not None or self.method in _IDEMPOTENT


class Transport:
    """See the module."""

    is_near = False
    """Whether the server notices at once that we leave, so that nothing is asked for twice."""

    def __init__(
        self, address: Address, timeout_s: float, inner: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Connect to nothing yet. `inner` carries requests instead of connections of our own."""
        self.address = address
        self.tasks = Tasks()
        self._timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S, pool=None)
        self._held = httpx.Timeout(timeout_s, connect=_CONNECT_S, pool=None, read=None)
        is_tcp = address.unix is None
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers={"X-API-Key": address.key, "User-Agent": "cellwall"},
            # A transport of our own also means: no proxy from the environment sees the key.
            transport=inner
            or httpx.AsyncHTTPTransport(
                # Reading the machine's certificates takes 100 ms; plain HTTP needs none.
                verify=address.url.startswith("https:"),
                limits=_LIMITS,
                uds=address.unix,
                socket_options=_ALIVE if is_tcp else None,
            ),
        )

    def budget(self) -> Budget:
        """Return the tries for one call."""
        return Budget(self.address.shown)

    # -- requests --------------------------------------------------------------------------

    async def json(self, ask: Ask) -> Json:
        """Return the object that answers. Raises what the error envelope says."""
        response = await self.request(ask)
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._foreign(response)
        return value

    async def request(self, ask: Ask) -> httpx.Response:
        """Return a whole answer."""
        budget = self.budget()
        while True:
            try:
                response = await self._http.send(self._built(ask))
            except httpx.TransportError as error:
                await self._again(ask, budget, error)
            else:
                return self._checked(response)

    @contextlib.asynccontextmanager
    async def stream(self, ask: Ask, budget: Budget | None = None) -> AsyncIterator[httpx.Response]:
        """Give an answer whose body is still to come; `httpx.TransportError` if that breaks."""
        budget = budget or self.budget()
        response: httpx.Response | None = None
        while response is None:
            try:
                response = await self._http.send(self._built(ask), stream=True)
            except httpx.TransportError as error:
                await self._again(ask, budget, error)
        try:
            if response.is_error:
                await response.aread()
            yield self._checked(response)
        finally:
            await response.aclose()

    async def pieces(self, ask: Ask) -> AsyncGenerator[bytes, None]:
        """Yield the body of an answer as it comes. Raises ServerUnreachable if it breaks off."""
        try:
            async with self.stream(ask) as response:
                async for data in response.aiter_raw():
                    yield data
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    async def _again(self, ask: Ask, budget: Budget, error: httpx.TransportError) -> None:
        if ask.may_repeat or isinstance(error, _NOT_SENT):
            # How long an upload was sent says nothing of a server.
            is_waiting = ask.is_held and ask.content is None
            await budget.wait(error, was_held=is_waiting and isinstance(error, _CUT))
        else:
            raise self.unreachable(error) from error

    def _built(self, ask: Ask) -> httpx.Request:
        if self._http.is_closed:
            raise UsageError("call: the client was closed", remedy="make a new one")
        headers: dict[str, str] = {}
        content: Any = ask.content
        if ask.body is not None:
            content = encoded(ask.body)
            headers["Content-Type"] = "application/json"
        elif content is not None:
            headers["Content-Type"] = ask.media
            if ask.size is not None:
                headers["Content-Length"] = str(ask.size)
            content = content() if callable(content) else content
        if ask.accept is not None:
            headers["Accept"] = ask.accept
        if ask.key is not None:
            headers["Idempotency-Key"] = ask.key
        return self._http.build_request(
            ask.method,
            ask.path,
            params=present(ask.params),
            content=content,
            headers=headers,
            timeout=self._held if ask.is_held else self._timeout,
        )

    # -- WebSockets ------------------------------------------------------------------------

    async def socket(self, path: str, params: Mapping[str, Any]) -> ClientConnection:
        """Open a WebSocket. Raises what the error envelope says, or ServerUnreachable."""
        from websockets.asyncio.client import connect, unix_connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        options: Json = {
            "additional_headers": {"X-API-Key": self.address.key},
            "compression": None,
            "max_size": None,
            # The server pings; what we do not read for long is its owner's wish.
            "ping_interval": None,
            "open_timeout": _CONNECT_S,
            "proxy": None,
        }
        url = f"{self.address.socket_url}{path}?{urlencode(present(params))}"
        try:
            if self.address.unix is not None:
                del options["proxy"]
                return await unix_connect(self.address.unix, url, **options)
            return await connect(url, **options)
        except InvalidStatus as error:
            refused = error.response
            raise refusal(
                refused.status_code, bytes(refused.body or b""), refused.headers
            ) from None
        except (OSError, InvalidHandshake) as error:
            raise self.unreachable(error) from error

    # -- errors ----------------------------------------------------------------------------

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        if response.is_error:
            raise refusal(response.status_code, response.content, response.headers)
        raise self._foreign(response)

    def _foreign(self, response: httpx.Response) -> ServerUnreachable:
        return ServerUnreachable(
            f"{self.address.shown} answered {response.status_code}, but not as cellwall does",
            remedy="see CELLWALL_URL",
        )

    def unreachable(self, error: Exception) -> ServerUnreachable:
        """Return what a caller is told when a connection broke."""
        return unreachable(self.address.shown, error)

    async def aclose(self) -> None:
        """Let go of everything; what runs on the server goes on there."""
        await self.tasks.cancel()
        await self._http.aclose()


def present(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the query: true and false as JSON writes them, None left out."""
    known = {True: "true", False: "false"}
    return {
        name: known[value] if isinstance(value, bool) else str(value)
        for name, value in params.items()
        if value is not None
    }


def segment(given: object, kind: str, *, remedy: str) -> str:
    """Return an id of the caller's as a segment of a path; `NotFound` if nothing has such a one.

    Not quoted instead: `..` stays what it is, and leads to what is above.
    """
    text = str(given)
    if text.isalnum() and text.isascii():
        return text
    raise NotFound(f"{kind} {text[:80]!r}: there is none of that id", remedy=remedy)


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> CellwallError:
    """Return what an answer above 399 says."""
    import json

    try:
        error = json.loads(body)["error"]
        retry_after = headers.get("retry-after", "1")
        return error_of(error, status, float(retry_after) if retry_after.isdecimal() else 1.0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServerUnreachable(
            f"the server answered {status}, but not as cellwall does", remedy="see CELLWALL_URL"
        )
