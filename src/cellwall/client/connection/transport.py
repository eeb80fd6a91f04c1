"""Transport: one server's HTTP, with pooled connections, retries, errors as exceptions, WebSockets.

The other parts of the SDK define the requests. Lives on one event loop. The invariant: a request is
sent again only where a second one cannot do anything twice: it is idempotent, it carries a key by
which the server knows it, or no connection was made.
"""

from __future__ import annotations

import contextlib
import re
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
# An answer is awaited for as long as a program runs; these options detect a server that is gone.
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
    """Query parameters; a value of None is left out."""
    body: Mapping[str, Any] | None = None
    """Object that is sent as JSON."""
    content: bytes | Callable[[], AsyncIterator[bytes]] | None = None
    """Bytes that are sent unchanged; a callable is called again for another try."""
    media: str = "application/octet-stream"
    """Media type of `content`."""
    size: int | None = None
    """Number of bytes of `content`, if it comes in pieces and the number is known."""
    accept: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Other headers, such as `range`."""
    key: str | None = None
    """Idempotency key, which makes a POST repeatable."""
    is_held: bool = False
    """Whether the answer may take as long as a program runs."""
    is_repeatable: bool | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether a second request does no harm."""
        if self.is_repeatable is not None:
            return self.is_repeatable
        return self.key is not None or self.method in _IDEMPOTENT


class Transport:
    """One server's HTTP; see the module."""

    is_near = False
    """Whether the server notices a disconnect at once, so that no request has to be repeated."""

    def __init__(
        self, address: Address, timeout_s: float, inner: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Connect to nothing yet. `inner` replaces the client's own connections."""
        self.address = address
        self.tasks = Tasks()
        self._timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S, pool=None)
        self._held = httpx.Timeout(timeout_s, connect=_CONNECT_S, pool=None, read=None)
        is_tcp = address.unix is None
        self._http = httpx.AsyncClient(
            base_url=address.url,
            headers={"X-API-Key": address.key, "User-Agent": "cellwall"},
            # An explicit transport also means: no proxy from the environment sees the key.
            transport=inner
            or httpx.AsyncHTTPTransport(
                # Loading the machine's certificates takes 100 ms; plain HTTP needs none.
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
        """Return the object of the answer. Raises the error of the error envelope."""
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
        """Yield an answer before its body; `httpx.TransportError` if the body breaks off."""
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
        """Yield the body of an answer as it arrives. Raises ServerUnreachable if it breaks off."""
        try:
            async with self.stream(ask) as response:
                async for data in response.aiter_raw():
                    yield data
        except httpx.TransportError as error:
            raise self.unreachable(error) from error

    async def _again(self, ask: Ask, budget: Budget, error: httpx.TransportError) -> None:
        if ask.may_repeat or isinstance(error, _NOT_SENT):
            # The duration of an upload is no sign that the server is alive.
            is_waiting = ask.is_held and ask.content is None
            await budget.wait(error, was_held=is_waiting and isinstance(error, _CUT))
        else:
            raise self.unreachable(error) from error

    def _built(self, ask: Ask) -> httpx.Request:
        if self._http.is_closed:
            raise UsageError("call: the client was closed", remedy="make a new one")
        headers: dict[str, str] = {**ask.headers}
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
        """Open a WebSocket. Raises the error of the error envelope, or ServerUnreachable."""
        from websockets.asyncio.client import connect, unix_connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        options: Json = {
            "additional_headers": {"X-API-Key": self.address.key},
            "compression": None,
            "max_size": None,
            # The server pings; an owner may leave data unread for long.
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
        """Return the caller's error for a connection that broke."""
        return unreachable(self.address.shown, error)

    async def aclose(self) -> None:
        """Close all connections; executions on the server continue."""
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


_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def segment(given: object, kind: str, *, remedy: str) -> str:
    """Return a caller's id or name as a segment of a path; `NotFound` if none has this form.

    It is not quoted instead: `..` is unchanged by quoting, and leads to the parent.
    """
    text = str(given)
    if _SEGMENT.fullmatch(text):
        return text
    raise NotFound(f"{kind} {text[:80]!r}: there is none of that id", remedy=remedy)


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> CellwallError:
    """Return the error of an answer above 399."""
    import json

    try:
        error = json.loads(body)["error"]
        retry_after = headers.get("retry-after", "1")
        return error_of(error, status, float(retry_after) if retry_after.isdecimal() else 1.0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServerUnreachable(
            f"the server answered {status}, but not as cellwall does", remedy="see CELLWALL_URL"
        )
