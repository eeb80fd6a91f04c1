"""Transport: one server's HTTP, with pooled connections, retries, errors as exceptions, WebSockets.

The other parts of the SDK define the requests. Lives on one event loop. Of several gateways, which
`servers` chooses from, each may have a request or its repetition. The invariant: a request is sent
again only where a second one cannot do anything twice: it is idempotent, it carries a key by which
the server, or the whole cluster, knows it, or no connection was made.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from cellwall.client.connection.retry import Budget, unreachable
from cellwall.client.connection.servers import Servers
from cellwall.model.errors import CellwallError, NotFound, ServerUnreachable, UsageError
from cellwall.surface.shared.tasks import Tasks
from cellwall.wire.asking import encoded
from cellwall.wire.reading import error_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from cellwall.client.connection.address import Address
    from cellwall.client.connection.servers import Server

NDJSON = "application/x-ndjson"
_CONNECT_S = 10.0
_CONNECT_OF_SEVERAL_S = 4.0
"""Seconds after which another gateway is asked, two repeated SYNs later."""
_IDEMPOTENT = frozenset({"GET", "PUT", "DELETE"})
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_CUT = (httpx.ReadError, httpx.RemoteProtocolError)

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
        self.servers = Servers(address, inner)
        self._connect_s = _CONNECT_OF_SEVERAL_S if address.others else _CONNECT_S
        self._timeout = httpx.Timeout(timeout_s, connect=self._connect_s, pool=None)
        self._held = httpx.Timeout(timeout_s, connect=self._connect_s, pool=None, read=None)

    def budget(self) -> Budget:
        """Return the tries for one call."""
        return Budget(self.address.shown, len(self.servers.all))

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
        _, response = await self._sent(ask, self.budget())
        return self._checked(response)

    @contextlib.asynccontextmanager
    async def stream(self, ask: Ask, budget: Budget | None = None) -> AsyncIterator[httpx.Response]:
        """Yield an answer before its body; `httpx.TransportError` if the body breaks off."""
        server, response = await self._sent(ask, budget or self.budget(), is_stream=True)
        try:
            if response.is_error:
                await response.aread()
            yield self._checked(response)
        except httpx.TransportError:
            self.servers.failed(server)
            raise
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

    async def _sent(
        self, ask: Ask, budget: Budget, *, is_stream: bool = False
    ) -> tuple[Server, httpx.Response]:
        """Send a request until a server answers; return that server and its answer."""
        while True:
            server = self.servers.choose()
            try:
                response = await server.http.send(self._built(ask, server), stream=is_stream)
            except httpx.TransportError as error:
                self.servers.failed(server)
                await self._again(ask, budget, error)
            else:
                self.servers.answered(server)
                return server, response

    async def _again(self, ask: Ask, budget: Budget, error: httpx.TransportError) -> None:
        if ask.may_repeat or isinstance(error, _NOT_SENT):
            # The duration of an upload is no sign that the server is alive.
            is_waiting = ask.is_held and ask.content is None
            await budget.wait(error, was_held=is_waiting and isinstance(error, _CUT))
        else:
            raise self.unreachable(error) from error

    def _built(self, ask: Ask, server: Server) -> httpx.Request:
        if server.http.is_closed:
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
        return server.http.build_request(
            ask.method,
            ask.path,
            params=present(ask.params),
            content=content,
            headers=headers,
            timeout=self._held if ask.is_held else self._timeout,
        )

    # -- WebSockets ------------------------------------------------------------------------

    async def socket(self, path: str, params: Mapping[str, Any]) -> ClientConnection:
        """Open a WebSocket. Raises the error of the error envelope, or ServerUnreachable.

        Another gateway is asked only if no connection was made: what it opens may begin a command.
        """
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        from cellwall.client.connection.sockets import made_no_connection, opened

        for left in reversed(range(len(self.servers.all))):
            server = self.servers.choose()
            try:
                return await opened(server.address, path, present(params), self._connect_s)
            except InvalidStatus as error:
                refused = error.response
                raise refusal(
                    refused.status_code, bytes(refused.body or b""), refused.headers
                ) from None
            except (OSError, InvalidHandshake) as error:
                self.servers.failed(server)
                if not left or not made_no_connection(error):
                    raise self.unreachable(error) from error
        raise AssertionError("there is an address")

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
        await self.servers.aclose()


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
