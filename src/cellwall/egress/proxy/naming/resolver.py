"""Resolver: the addresses of a host name, asked by the proxy and never by a sandbox.

Uses the machine's own resolver (`getaddrinfo`, so /etc/hosts counts as well) in a few threads, or
the name servers that the operator lists. The invariant: a sandbox has a bounded number of questions
under way, and what it was told is kept for it alone, so that no sandbox learns by the time of an
answer what another one asks.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

RESOLVE_S = 8.0
"""Seconds after which a question has failed."""
KEPT_S = 30.0
"""Seconds for which an answer is kept; what is connected to is what was resolved."""
_MOST_ASKED = 8
"""Most questions of one sandbox at one time."""
_MOST_KEPT = 1024
_THREADS = 64
"""Most threads in which the machine's resolver is asked, of all sandboxes together."""

Ask = Callable[[str], Awaitable[list[str]]]


class NoSuchName(Exception):
    """The name has no address, or the resolver did not say so in time."""


class Busy(Exception):
    """The sandbox has too many questions under way."""


class Answers:
    """What one sandbox was told."""

    def __init__(self, ask: Ask) -> None:
        """`ask` resolves a name: addresses as text, or `NoSuchName`."""
        self._ask = ask
        self._known: dict[str, tuple[float, list[str]]] = {}
        self._asked: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, name: str) -> list[str]:
        """Return the addresses of `name`, at least one. Raises `NoSuchName`, `Busy`."""
        known = self._known.get(name)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        asked = self._asked.get(name)
        if asked is None:
            if len(self._asked) >= _MOST_ASKED:
                raise Busy(f"{_MOST_ASKED} questions are under way")
            asked = asyncio.ensure_future(self._ask(name))
            self._asked[name] = asked
            asked.add_done_callback(lambda done: self._take(name, done))
        # A question that was given up keeps its place until it has really ended: it holds a thread.
        done, _ = await asyncio.wait({asked}, timeout=RESOLVE_S)
        if not done:
            raise NoSuchName(f"{name}: no answer in {RESOLVE_S:g} s")
        found = asked.result()
        if not found:
            raise NoSuchName(f"{name}: no address")
        return found

    def _take(self, name: str, asked: asyncio.Future[list[str]]) -> None:
        del self._asked[name]
        if asked.cancelled() or asked.exception() is not None or not asked.result():
            return  # every waiter is told; what has no answer is asked anew
        while len(self._known) >= _MOST_KEPT:
            del self._known[next(iter(self._known))]
        self._known[name] = (time.monotonic() + KEPT_S, asked.result())


def by_the_machine() -> Ask:
    """Return a resolver that asks as other programs of this machine do."""
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")

    def look_up(name: str) -> list[str]:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NoSuchName(f"{name}: {error}") from None
        return list(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))

    async def ask(name: str) -> list[str]:
        # The final dot keeps the search list of the machine's resolver out.
        return await asyncio.get_running_loop().run_in_executor(threads, look_up, f"{name}.")

    return ask


def by_servers(servers: Sequence[str]) -> Ask:
    """Return a resolver that asks name servers, written `address` or `address:port`."""
    from dns import asyncresolver, exception

    resolver = asyncresolver.Resolver(configure=False)
    resolver.lifetime = RESOLVE_S
    pairs = [_server(each) for each in servers]
    resolver.nameservers = [address for address, _ in pairs]
    resolver.nameserver_ports = {address: port for address, port in pairs if port}

    async def ask(name: str) -> list[str]:
        try:
            answer = await resolver.resolve_name(f"{name}.")
        except exception.DNSException as error:
            raise NoSuchName(f"{name}: {error}") from None
        return list(dict.fromkeys(answer.addresses()))

    return ask


def _server(text: str) -> tuple[str, int]:
    """Take `address:port` apart; the port is 0 where none is written."""
    if text.count(":") == 1:
        address, _, port = text.partition(":")
        return address, int(port)
    return text, 0
