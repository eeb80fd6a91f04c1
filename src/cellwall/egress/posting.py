"""One POST or PUT to a caller's URL: resolve once, check, connect to that very address.

Retries and signatures are in `webhook`. No redirect is followed, no proxy of the environment is
used, no body is read. The invariant: the socket is connected to an address that the policy has
checked; no step between the check and the connection resolves the name again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import h11

from cellwall.egress.addresses import AddressPolicy
from cellwall.egress.target import Target
from cellwall.model.errors import CellwallError

PUBLIC_PORTS = (443, 8443)
"""Ports of addresses that the operator did not list: web servers are there, mail servers are
not."""
_CONNECT_S = 5.0
_ANSWER_S = 10.0
LONGEST_S = _CONNECT_S + _ANSWER_S
"""Seconds of one attempt at most."""
_HEAD_BYTES = 16 * 1024
_RESOLVERS = 4
"""Number of resolver threads; a name server that does not answer delays webhooks only."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Headers = Sequence[tuple[str, str]]


class Denied(CellwallError):
    """The policy forbids the target; trying again would not change that."""

    code = "webhook_denied"


class Unanswered(CellwallError):
    """No connection, or no answer, in time."""

    code = "webhook_unanswered"


class SystemResolver:
    """The host's resolver, on threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="cellwall-resolve")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name, in the system's order, each once."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def close(self) -> None:
        """Take no more names."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class Poster:
    """Posts under a policy."""

    policy: AddressPolicy
    resolve: Resolve
    tls: ssl.SSLContext | None = None
    """TLS context with the trusted authorities; None: those that this machine trusts."""

    async def post(
        self, target: Target, headers: Headers, body: bytes, method: str = "POST"
    ) -> int:
        """Return the status of the answer.

        Raises `Denied` if the policy forbids every address, `Unanswered` if no answer came.
        """
        fields = [
            ("Host", target.authority),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *headers,
        ]
        request = h11.Request(method=method, target=target.path, headers=fields)
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await self._connect(target)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await _exchange(reader, writer, request, body)
            finally:
                writer.transport.abort()
        except TimeoutError:
            raise Unanswered(f"post to {target.host}: it took too long") from None
        except (OSError, h11.RemoteProtocolError, UnicodeError) as error:
            raise Unanswered(f"post to {target.host}: {error}") from error

    async def _connect(self, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Try the allowed addresses in the system's order; the last failure counts."""
        found = await self.resolve(target.host, target.port)
        allowed = [address for address in found if self._is_allowed(target, address)]
        if not allowed:
            raise Denied(
                f"post to {target.host}: not over https to port 443 or 8443 of a public address",
                remedy="use such a URL, or let the operator list the address",
            )
        for address in allowed[:-1]:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CONNECT_S / len(allowed)):
                    return await self._open(target, address)
        return await self._open(target, allowed[-1])

    def _is_allowed(self, target: Target, address: str) -> bool:
        is_fit = target.is_tls and target.port in PUBLIC_PORTS
        return self.policy.is_listed(address) or (is_fit and self.policy.is_public(address))

    async def _open(
        self, target: Target, address: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if target.is_tls and self.tls is None:
            # Reading the authorities takes some 50 ms, for which the loop should not be blocked.
            self.tls = await asyncio.to_thread(ssl.create_default_context)
        # SECURITY: the address, never the name: a second look-up could answer something else.
        return await asyncio.open_connection(
            address,
            target.port,
            ssl=self.tls if target.is_tls else None,
            server_hostname=target.host if target.is_tls else None,
        )


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: h11.Request,
    body: bytes,
) -> int:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
    for event in (request, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(http.send(event) or b"")
    await writer.drain()
    while True:
        answer = http.next_event()
        if isinstance(answer, h11.Response):
            return answer.status_code
        if answer is h11.NEED_DATA:
            http.receive_data(await reader.read(_HEAD_BYTES))
